//! An API server that stalls, forgets, lies, goes away and comes back: no connection notices, and in the end the kernel
//! holds what the objects say.
//!
//! The real agent by the fault proxy on a real API server. The outage is of a minute, of ten with `PORTWAY_LONG`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster::identity::ADMIN_TOKEN;
use portway_tests::harness::cluster::{ApiClient, ControlPlane};
use portway_tests::harness::fault::{EventFault, FaultProxy, Reach, RequestFault};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Service, TCP, endpoints};
use portway_tests::harness::{Agent, Pod, Probe, World, eventually};

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// `k8s-client-qps`, as it is where nobody sets it.
const QPS: usize = 10;
/// Within which an agent that was told what it missed has everything right.
const CONVERGED: Duration = Duration::from_secs(5);

/// Off where nobody asks for it.
const HEALTHZ: &str = "--kube-proxy-replacement-healthz-bind-address=127.0.0.1:10256";

/// Pods `a` and `b`, the service `web` on `a`, and the agent by a proxy.
struct Stage {
    a: Pod,
    b: Pod,
    proxy: FaultProxy,
    client: Probe,
}

impl Stage {
    fn set(world: &mut World, control_plane: &ControlPlane) -> Result<Self> {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        control_plane.publish(&web(), endpoints(&[&a]))?;
        let proxy = FaultProxy::start(control_plane)?;
        world.follow(proxy.kubeconfig());
        world.start_agent(&[HEALTHZ])?;
        let mut client = world.node_client()?;
        for to in WEB {
            client.wait_servers(to, &["a"])?;
        }
        Ok(Self { a, b, proxy, client })
    }

    /// Waits until `web` is answered by exactly `names`, at most `limit`; gives how long that took.
    fn wait(&mut self, names: &[&str], limit: Duration) -> Result<Duration> {
        let begin = Instant::now();
        for to in WEB {
            eventually(
                limit.saturating_sub(begin.elapsed()),
                &format!("{to} to be answered by {names:?}"),
                || {
                    let servers = self.client.servers(to)?;
                    ensure!(servers.iter().eq(names), "it is answered by {servers:?}");
                    Ok(())
                },
            )?;
        }
        Ok(begin.elapsed())
    }

    fn lists(&self) -> [usize; 2] {
        [SERVICES, SLICES].map(|path| self.proxy.lists(path))
    }
}

fn address(url: &str) -> Result<SocketAddr> {
    url.trim_start_matches("https://").parse().with_context(|| format!("read {url}"))
}

/// Row 88: a watch that ends without a word. The API server's bookmarks come each minute, so 65 s are the bar.
#[test]
fn pain_88_a_watch_that_stalls_without_a_word_is_resumed_within_65_s_and_not_listed_again() -> Result<()> {
    World::cluster("stall", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let lists = stage.lists();
        let begin = Instant::now();
        stage.proxy.stall_watches();
        control_plane.publish(&web(), endpoints(&[&stage.b]))?;
        // What was there goes on meanwhile.
        assert_eq!(stage.client.tcp(WEB[0])?.unwrap().name, "a");
        stage.wait(&["b"], Duration::from_secs(75))?;
        let resumed = begin.elapsed();
        let abandoned = stage.proxy.abandoned();
        let slices =
            abandoned.iter().find(|seen| seen.asked.path == SLICES).context("no watch was given up")?;
        let noticed = slices.at.saturating_duration_since(begin);
        println!(
            "a stalled watch: noticed after {:.1} s (bar 65), what it missed was served after {:.1} s",
            noticed.as_secs_f64(),
            resumed.as_secs_f64()
        );
        ensure!(noticed <= Duration::from_secs(65), "noticed after {noticed:?}");
        // Resumes are spread over half a second.
        ensure!(resumed < Duration::from_secs(67), "resumed after {resumed:?}");
        assert_eq!(stage.lists(), lists, "it was listed again");
        Ok(())
    })
}

/// A watch that ends in any way goes on where it was.
#[test]
fn watches_that_are_cut_are_resumed_and_not_listed_again() -> Result<()> {
    World::cluster("cut", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let lists = stage.lists();
        let pods = [stage.b.clone(), stage.a.clone()];
        let mut slowest = Duration::ZERO;
        for fault in [EventFault::Cut, EventFault::End, EventFault::HalfLine, EventFault::Garbage] {
            for (pod, name) in pods.iter().zip(["b", "a"]) {
                let mut left = 1;
                stage.proxy.on_events(move |asked, _| {
                    if asked.path == SLICES && left > 0 {
                        left -= 1;
                        return fault;
                    }
                    EventFault::None
                });
                control_plane.publish(&web(), endpoints(&[pod]))?;
                slowest = slowest.max(stage.wait(&[name], CONVERGED).with_context(|| format!("{fault:?}"))?);
            }
        }
        println!("watches cut in 4 ways: the slowest resumed after {:.2} s", slowest.as_secs_f64());
        assert_eq!(stage.lists(), lists, "it was listed again");
        Ok(())
    })
}

/// Both ways in which an API server says that it has forgotten. What was deleted meanwhile is told by no event.
#[test]
fn after_410_in_the_stream_and_as_a_status_deletions_are_seen_within_5_s() -> Result<()> {
    World::cluster("gone", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let other = |n: u8| Service::new("other", &[&format!("10.96.0.{n}")]).port("http", TCP, 80);
        for (round, as_status) in [false, true].into_iter().enumerate() {
            let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 20 + round as u8)), 80);
            let service = other(20 + round as u8);
            control_plane.publish(&service, [stage.a.endpoint()])?;
            stage.client.wait_servers(at, &["a"])?;
            let lists = stage.lists();
            if as_status {
                // Until each of the watches that matter was answered so once, nothing else gets through.
                let mut left = vec![SERVICES, SLICES];
                stage.proxy.on_requests(move |asked| {
                    if asked.is_watch() && left.contains(&asked.path.as_str()) {
                        left.retain(|path| *path != asked.path);
                        return RequestFault::Status(410, None);
                    }
                    RequestFault::None
                });
                stage.proxy.on_events(|_, _| EventFault::Cut);
            } else {
                stage.proxy.on_events(|_, _| EventFault::Gone);
            }
            let begin = Instant::now();
            for object in service.with_endpoints([stage.a.endpoint()]) {
                control_plane.client().delete(&object)?;
            }
            control_plane.publish(&web(), endpoints(&[&stage.b]))?;
            eventually(CONVERGED, "the watches to be told 410", || {
                ensure!(stage.lists().iter().zip(lists).all(|(now, then)| *now > then), "not yet");
                Ok(())
            })?;
            stage.proxy.on_events(|_, _| EventFault::None);
            stage.wait(&["b"], CONVERGED)?;
            stage.client.wait_servers(at, &["ENETUNREACH"])?;
            let way = if as_status { "as a status" } else { "in the stream" };
            println!("410 {way}: converged after {:.2} s (bar 5 s)", begin.elapsed().as_secs_f64());
            ensure!(begin.elapsed() < CONVERGED, "{way}: {:?}", begin.elapsed());
            control_plane.publish(&web(), endpoints(&[&stage.a]))?;
            stage.wait(&["a"], CONVERGED)?;
        }
        Ok(())
    })
}

/// Row 1: after an outage additions were applied and removals were lost. The API server was really gone here, and what
/// it knew of versions with it.
#[test]
fn pain_01_after_an_outage_a_list_replaces_what_was_known() -> Result<()> {
    World::cluster("outage", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let second = control_plane.add_api_server()?;
        let identity = control_plane.identity();
        let other = ApiClient::new(world.node(), address(&second)?, identity, ADMIN_TOKEN)?;
        control_plane.stop_api_server()?;
        for object in web().with_endpoints(endpoints(&[&stage.b])) {
            other.apply(&object)?;
        }
        assert_eq!(stage.client.tcp(WEB[0])?.unwrap().name, "a");
        control_plane.start_api_server()?;
        // A minute is the longest that a watch waits between two tries.
        let took = stage.wait(&["b"], Duration::from_secs(60))?;
        println!(
            "an API server that was restarted: converged {:.1} s after it was ready",
            took.as_secs_f64()
        );
        // And a later update finds nothing of before.
        control_plane.publish(&web(), endpoints(&[&stage.a, &stage.b]))?;
        stage.wait(&["a", "b"], CONVERGED)?;
        control_plane.publish(&web(), endpoints(&[&stage.a]))?;
        stage.wait(&["a"], CONVERGED)?;
        Ok(())
    })
}

/// Row 4: a restart whose list of Services comes after that of EndpointSlices deleted services that exist.
#[test]
fn pain_04_a_restart_that_hears_of_slices_first_deletes_no_service() -> Result<()> {
    const MANY: u16 = 500;
    World::cluster("slow-list", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let at = |n: u16| Ipv4Addr::new(10, 96, 1 + (n / 250) as u8, 1 + (n % 250) as u8);
        let objects = (0..MANY).flat_map(|n| {
            let service = Service::new(&format!("s{n}"), &[&at(n).to_string()]).port("http", TCP, 80);
            service.with_endpoints([stage.a.endpoint()])
        });
        control_plane.client().create_all(objects.collect())?;
        let targets: Vec<SocketAddr> = (0..MANY).map(|n| SocketAddr::new(at(n).into(), 80)).collect();
        eventually(CONVERGED, "all services", || {
            let tally = stage.client.connects(&targets, MANY.into(), 0)?;
            ensure!(tally.failures() == 0, "{tally:?}");
            Ok(())
        })?;
        world.kill_agent()?;
        // Services come three seconds after the slices.
        stage.proxy.on_requests(|asked| match asked.path == SERVICES && asked.is_list() {
            true => RequestFault::Delay(Duration::from_secs(3)),
            false => RequestFault::None,
        });
        stage.client.start_connects(&targets, 6_000, 1_000)?;
        world.start_agent(&[])?;
        let tally = stage.client.finish_connects()?;
        println!("a restart whose Services come 3 s late: {} of {} connects failed", tally.failures(), 6_000);
        assert_eq!((tally.failures(), tally.answers()), (0, 6_000), "{tally:?}");
        Ok(())
    })
}

/// Whichever comes first, a service answers once both are there.
#[test]
fn slices_that_come_before_their_service_are_used_when_it_comes() -> Result<()> {
    World::cluster("order", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let late = Service::new("late", &["10.96.0.30"]).port("http", TCP, 80);
        let objects = late.with_endpoints([stage.a.endpoint()]);
        let (service, slices) = objects.split_last().context("no objects")?;
        for slice in slices {
            control_plane.client().apply(slice)?;
        }
        control_plane.client().apply(service)?;
        stage.client.wait_servers("10.96.0.30:80", &["a"])?;
        Ok(())
    })
}

/// Clock ticks that a process has used so far, in seconds.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("read the agent's statistics")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| -> Result<f64> { Ok(fields.get(n).context("too few fields")?.parse()?) };
    // Fields 14 and 15 of proc(5), counted behind the name; a tick is 10 ms on every Linux of ours.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// What load balancers and the kubelet are told.
fn health(world: &World) -> Result<Vec<String>> {
    let probes = [(10_256, "/healthz"), (10_256, "/livez"), (9_879, "/healthz")];
    let ask = |(port, path)| {
        let answer = world.node().http_get(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port), path)?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    };
    probes.into_iter().map(ask).collect()
}

#[test]
fn an_api_server_that_is_gone_is_noticed_by_no_connection_and_not_run_over_on_its_return() -> Result<()> {
    const PER_SECOND: u32 = 1_000;
    let seconds = if std::env::var_os("PORTWAY_LONG").is_some() { 600 } else { 60 };
    World::cluster("away", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        let mut pods = vec![stage.a.clone(), stage.b.clone()];
        pods.extend(world.serving_pods(&["c", "d"])?);
        let four: Vec<&Pod> = pods.iter().collect();
        control_plane.publish(&web(), endpoints(&four))?;
        stage.wait(&["a", "b", "c", "d"], CONVERGED)?;
        let agent = world.agent.as_ref().context("no agent")?.id();
        let healthy = health(world)?;
        assert!(healthy.iter().all(|line| line.contains(" 200 ")), "{healthy:?}");

        let (begin, before) = (Instant::now(), cpu_seconds(agent)?);
        stage.proxy.set_reach(Reach::Refused);
        control_plane.publish(&web(), endpoints(&[&stage.b]))?;
        let to: Vec<SocketAddr> = WEB.iter().map(|to| to.parse()).collect::<Result<_, _>>()?;
        let mut load = world.node_client()?;
        load.start_connects(&to, seconds * PER_SECOND, PER_SECOND)?;
        let mut unlike = Vec::new();
        while begin.elapsed() < Duration::from_secs(seconds.into()) {
            let now = health(world)?;
            if now != healthy {
                unlike.push(now);
            }
            // A probe of a kubelet or a load balancer.
            std::thread::sleep(Duration::from_secs(2));
        }
        let tally = load.finish_connects()?;
        let cpu = (cpu_seconds(agent)? - before) / begin.elapsed().as_secs_f64() * 100.0;
        let back = Instant::now();
        stage.proxy.set_reach(Reach::Up);
        let converged = stage.wait(&["b"], Duration::from_secs(60))?;
        let peak = stage.proxy.peak_per_second(back);
        println!(
            "API server gone for {seconds} s: {} of {} connects failed (bar 0), agent's CPU {cpu:.1} % (bar 5), {} \
             changed probes (bar 0); on return {peak} requests in the busiest second (bar {QPS}), converged after {:.1} s",
            tally.failures(),
            tally.failures() + tally.answers(),
            unlike.len(),
            converged.as_secs_f64(),
        );
        assert_eq!((tally.failures(), tally.answers()), (0, seconds * PER_SECOND), "{tally:?}");
        assert_eq!(unlike, Vec::<Vec<String>>::new());
        ensure!(cpu <= 5.0, "the agent used {cpu:.1} % of a CPU");
        ensure!((1..=QPS).contains(&peak), "{peak} requests in a second");
        Ok(())
    })
}

/// As after a node's boot while the control plane is down.
#[test]
fn an_agent_that_starts_while_the_api_server_is_gone_takes_nothing_away() -> Result<()> {
    World::cluster("orphan", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane)?;
        world.kill_agent()?;
        for reach in [Reach::Refused, Reach::Silent] {
            stage.proxy.set_reach(reach);
            let agent = Agent::spawn(&world.places(), &[])?;
            let seen = stage.proxy.seen().len();
            let to: Vec<SocketAddr> = WEB.iter().map(|to| to.parse()).collect::<Result<_, _>>()?;
            let tally = stage.client.connects(&to, 5_000, 1_000)?;
            assert_eq!((tally.failures(), tally.answers()), (0, 5_000), "{reach:?}: {tally:?}");
            assert_eq!(stage.proxy.seen().len(), seen);
            agent.kill()?;
        }
        control_plane.publish(&web(), endpoints(&[&stage.b]))?;
        stage.proxy.set_reach(Reach::Up);
        world.start_agent(&[])?;
        stage.wait(&["b"], CONVERGED)?;
        Ok(())
    })
}

#[test]
fn of_two_api_servers_the_one_that_answers_is_used() -> Result<()> {
    World::cluster("failover", |world, control_plane| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let urls = [control_plane.url(), control_plane.add_api_server()?];
        let identity = control_plane.identity();
        let clients = [
            ApiClient::new(world.node(), address(&urls[0])?, identity, ADMIN_TOKEN)?,
            ApiClient::new(world.node(), address(&urls[1])?, identity, ADMIN_TOKEN)?,
        ];
        control_plane.publish(&web(), endpoints(&[&a]))?;
        world.follow(control_plane.kubeconfig()?);
        world.start_agent(&[&format!("--k8s-api-server-urls={},{}", urls[0], urls[1])])?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a"])?;
        for (gone, pod, name) in [(0, &b, "b"), (1, &a, "a")] {
            let begin = Instant::now();
            control_plane.stop(gone)?;
            for object in web().with_endpoints(endpoints(&[pod])) {
                clients[1 - gone].apply(&object)?;
            }
            eventually(Duration::from_secs(10), "the other API server's objects", || {
                let servers = client.servers(WEB[0])?;
                ensure!(servers.iter().eq([name]), "it is answered by {servers:?}");
                Ok(())
            })?;
            println!(
                "API server {gone} killed: the other one's change came {:.2} s later",
                begin.elapsed().as_secs_f64()
            );
            control_plane.start_at(gone)?;
        }
        Ok(())
    })
}
