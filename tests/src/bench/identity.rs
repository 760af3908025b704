//! `bench identity`: how fast numbers are claimed, how soon every node knows a new pod, and what it costs a node to know
//! a large cluster.

mod claims;
mod held;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::report::{Figure, median, quantile};
use crate::harness::ClusterNet;
use crate::harness::cluster_net::arrivals::{Arrival, arrive};
use crate::harness::cluster_net::{Pod, PodSpec, Routing};

const BENCH: &str = "identity";
const KNOWN_SETS: u32 = 10;
/// 20 new pods a second.
const APART: Duration = Duration::from_millis(50);

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let mut figures = claims::run(long)?;
    figures.extend(arrivals(long)?);
    figures.extend(held::run(long)?);
    Ok(figures)
}

/// From the plugin's call to the pod's identity in the ipcache of two other nodes, of label sets that are known.
fn arrivals(long: bool) -> Result<Vec<Figure>> {
    let mut net = ClusterNet::on_api(BENCH, 3)?;
    net.start_agents(Routing::Native, &[])?;
    let app = |number: u32| format!("app-{}", number % KNOWN_SETS);
    let first = |set| net.make(2, &PodSpec::new(&format!("first-{set}")).labelled("app", &app(set)));
    let _first: Vec<Pod> = (0..KNOWN_SETS).map(first).collect::<Result<_>>()?;
    let objects = net.wait_agreement(Duration::from_secs(10))?;
    let known: BTreeMap<String, u32> = (0..KNOWN_SETS)
        .map(|set| Ok((app(set), objects.of_pod("default", &format!("first-{set}"))?)))
        .collect::<Result<_>>()?;
    // A node's range has 254 addresses; the first ones are the node's own.
    let many = if long { 240 } else { 100 };
    let mut all: Vec<Arrival> = Vec::new();
    for turn in 0..if long { 5 } else { 1 } {
        let specs = (0..many).map(|number| PodSpec::new(&format!("new-{turn}-{number}")));
        let specs: Vec<_> =
            (0..).zip(specs).map(|(number, spec)| spec.labelled("app", &app(number))).collect();
        let arrivals = arrive(&net, 1, &specs, APART)?;
        for (number, arrival) in (0..).zip(&arrivals) {
            let wanted = known.get(&app(number)).copied();
            let right = arrival.elsewhere.iter().flatten().all(|values| {
                values.iter().all(|(_, value)| matches!(value, None | Some(0)) || *value == wanted)
            });
            ensure!(right && arrival.own == [wanted; 2], "{}: {arrival:?}", arrival.pod.name());
            net.remove(&arrival.pod)?;
        }
        all.extend(arrivals);
    }
    let ns = |duration: Duration| duration.as_nanos() as u64;
    let answers: Vec<u64> = all.iter().map(|arrival| ns(arrival.answered - arrival.called)).collect();
    let lags: Vec<u64> = all.iter().map(|arrival| ns(arrival.until_known_everywhere())).collect();
    let ms = |ns: f64| ns / 1e6;
    let of = |what: &str| format!("20 pods a second, ADD to {what}");
    Ok(vec![
        Figure::trend(BENCH, of("its answer, median"), ms(median(&answers)), "ms"),
        Figure::trend(BENCH, of("its answer, p99"), ms(quantile(&answers, 0.99) as f64), "ms"),
        Figure::trend(BENCH, of("the ipcache of two other nodes, median"), ms(median(&lags)), "ms"),
        Figure::at_most(
            BENCH,
            of("the ipcache of two other nodes, p99"),
            ms(quantile(&lags, 0.99) as f64),
            "ms",
            100.0,
        ),
    ])
}
