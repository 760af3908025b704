//! Network namespaces and the links between them.

use std::ffi::OsStr;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

/// A network namespace. It lives as long as a handle to it, a socket or a process in it.
///
/// A new one has loopback up and no route to anywhere, so nothing sent in it can leave it.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: Arc<str>,
    fd: Arc<OwnedFd>,
}

impl Namespace {
    /// Needs root. IPv6 addresses in it work at once: duplicate address detection is off.
    pub fn new(name: &str) -> Result<Self> {
        let fd = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("unshare the network namespace (needs root)")?;
            for key in ["ipv6/conf/all/accept_dad", "ipv6/conf/default/accept_dad"] {
                std::fs::write(format!("/proc/sys/net/{key}"), "0").with_context(|| format!("set {key}"))?;
            }
            own_fd()
        })?;
        Self::up(name, fd)
    }

    /// As a container runtime makes one: with the kernel's own settings.
    pub fn as_a_runtime_makes_it(name: &str) -> Result<Self> {
        let fd = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("unshare the network namespace (needs root)")?;
            own_fd()
        })?;
        Self::up(name, fd)
    }

    fn up(name: &str, fd: OwnedFd) -> Result<Self> {
        let namespace = Self { name: name.into(), fd: Arc::new(fd) };
        namespace.set_up("lo")?;
        Ok(namespace)
    }

    /// A path by which another process can open it while this one lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How a person enters it while this process lives.
    pub fn enter_command(&self) -> String {
        format!("nsenter --net={}", self.path().display())
    }

    /// Runs `f` on a thread of its own inside the namespace. Sockets made there stay there.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            self.join_thread()?;
            f()
        })
    }

    /// Moves the calling thread into the namespace, for good.
    pub fn join_thread(&self) -> Result<()> {
        setns(&*self.fd, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("enter the namespace {}", self.name))
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.place(&mut command);
        command
    }

    /// Makes `command` run inside.
    pub fn place(&self, command: &mut Command) {
        let fd = Arc::clone(&self.fd);
        // SAFETY: between fork and exec only setns(2) is called, on a descriptor that the closure owns; it is
        // async-signal-safe and allocates nothing.
        unsafe {
            command.pre_exec(move || setns(&*fd, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from));
        }
    }

    /// What an HTTP server of this namespace answers to a GET, head and body.
    pub fn http_get(&self, server: SocketAddr, path: &str) -> Result<String> {
        self.run(|| {
            let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(1))
                .with_context(|| format!("connect to {server} for {path}"))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            std::io::read_to_string(stream).with_context(|| format!("read {path}"))
        })
    }

    /// `SO_NETNS_COOKIE` of its sockets: what the programs know it by.
    pub fn cookie(&self) -> Result<u64> {
        self.run(|| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").context("make a socket")?;
            super::socket::netns_cookie(&socket).context("read the namespace's cookie")
        })
    }

    /// Sets a sysctl under `net/`, of this namespace alone.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.run(|| {
            std::fs::write(format!("/proc/sys/net/{key}"), value).with_context(|| format!("set net/{key}"))
        })
    }

    /// A link `name` here whose other end is `peer_name` in `peer`. Both are up.
    pub fn add_veth(&self, name: &str, peer: &Self, peer_name: &str) -> Result<()> {
        let other_end = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer_name.to_owned())
            .setns_by_fd(peer.fd.as_raw_fd())
            .build();
        let link =
            LinkVeth::new(name, peer_name).set_info_data(InfoData::Veth(InfoVeth::Peer(other_end))).build();
        self.netlink(async |handle| handle.link().add(link).execute().await)
            .with_context(|| format!("join {} and {} by {name}", self.name, peer.name))?;
        self.set_up(name)?;
        peer.set_up(peer_name)
    }

    pub fn set_up(&self, link: &str) -> Result<()> {
        let up = LinkUnspec::new_with_name(link).up().build();
        self.netlink(async |handle| handle.link().change(up).execute().await)
            .with_context(|| format!("bring up {link} in {}", self.name))
    }

    /// A bridge `name`, up, without members.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        let bridge = LinkBridge::new(name).build();
        self.netlink(async |handle| handle.link().add(bridge).execute().await)
            .with_context(|| format!("make the bridge {name} in {}", self.name))
    }

    /// Makes `link` a member of `bridge`.
    pub fn enslave(&self, link: &str, bridge: &str) -> Result<()> {
        self.netlink(async |handle| {
            let index = index_of(&handle, bridge).await?;
            let member = LinkUnspec::new_with_name(link).controller(index).build();
            handle.link().change(member).execute().await
        })
        .with_context(|| format!("make {link} a member of {bridge} in {}", self.name))
    }

    /// In bytes, of the network layer.
    pub fn set_mtu(&self, link: &str, mtu: u32) -> Result<()> {
        let link_message = LinkUnspec::new_with_name(link).mtu(mtu).build();
        self.netlink(async |handle| handle.link().change(link_message).execute().await)
            .with_context(|| format!("set the MTU of {link} in {} to {mtu}", self.name))
    }

    pub fn add_address(&self, link: &str, addr: IpAddr, prefix: u8) -> Result<()> {
        self.netlink(async |handle| {
            let index = index_of(&handle, link).await?;
            let mut request = handle.address().add(index, addr, prefix);
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            request.execute().await
        })
        .with_context(|| format!("add {addr}/{prefix} to {link} in {}", self.name))
    }

    pub fn delete_address(&self, link: &str, addr: IpAddr) -> Result<()> {
        self.netlink(async |handle| {
            let index = index_of(&handle, link).await?;
            let mut found =
                handle.address().get().set_link_index_filter(index).set_address_filter(addr).execute();
            match found.try_next().await? {
                Some(message) => handle.address().del(message).execute().await,
                None => Err(rtnetlink::Error::RequestFailed),
            }
        })
        .with_context(|| format!("delete {addr} from {link} in {}", self.name))
    }

    pub fn add_default_route(&self, gateway: IpAddr) -> Result<()> {
        let route = match gateway {
            IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(v4).build(),
            IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(v6).build(),
        };
        self.netlink(async |handle| handle.route().add(route).execute().await)
            .with_context(|| format!("route {} by {gateway}", self.name))
    }

    fn netlink<T: Send>(
        &self,
        f: impl AsyncFnOnce(Handle) -> Result<T, rtnetlink::Error> + Send,
    ) -> Result<T> {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .context("start a runtime for netlink")?;
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().context("open a netlink socket")?;
                let task = tokio::spawn(connection);
                let result = f(handle).await;
                task.abort();
                Ok(result?)
            })
        })
    }
}

/// The calling thread's network namespace.
fn own_fd() -> Result<OwnedFd> {
    let file = std::fs::File::open("/proc/thread-self/ns/net").context("open the network namespace")?;
    Ok(OwnedFd::from(file))
}

async fn index_of(handle: &Handle, link: &str) -> Result<u32, rtnetlink::Error> {
    let found = handle.link().get().match_name(link.to_owned()).execute().try_next().await?;
    found.map(|message| message.header.index).ok_or(rtnetlink::Error::RequestFailed)
}

/// Namespaces belong to threads: what changes its own runs on one that ends with it.
fn on_own_thread<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(f).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
