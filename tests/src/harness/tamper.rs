//! What somebody else does to Portway's side of the kernel, done without the code under test.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;

use super::Namespace;

const BPF_MAP_UPDATE_ELEM: i64 = 2;
const BPF_MAP_DELETE_ELEM: i64 = 3;
const BPF_PROG_LOAD: i64 = 5;
const BPF_OBJ_GET: i64 = 7;
const BPF_LINK_CREATE: i64 = 28;
const BPF_LINK_DETACH: i64 = 34;
const BPF_PROG_TYPE_CGROUP_SOCK_ADDR: u32 = 18;

/// `bpf_attr` as words of four bytes.
type Attr = [u32; 32];

/// Detaches the program of a pinned link; the pin stays.
pub fn detach(link: &Path) -> Result<()> {
    let link_fd = open(link)?;
    let mut attr = words(&[number(&link_fd)]);
    bpf(BPF_LINK_DETACH, &mut attr).with_context(|| format!("detach {}", link.display()))?;
    Ok(())
}

/// `bpftool map update`.
pub fn update(map: &Path, key: &[u8], value: &[u8]) -> Result<()> {
    element(BPF_MAP_UPDATE_ELEM, map, key, value).with_context(|| format!("update {}", map.display()))
}

/// `bpftool map delete`.
pub fn delete(map: &Path, key: &[u8]) -> Result<()> {
    element(BPF_MAP_DELETE_ELEM, map, key, &[]).with_context(|| format!("delete from {}", map.display()))
}

/// A program that lets everything pass, attached until this guard goes.
#[derive(Debug)]
pub struct Bystander {
    _link: OwnedFd,
}

impl Bystander {
    /// `attach_type` as in [`super::bpf::ATTACH_TYPES`], of a hook for addresses.
    pub fn attach(cgroup: &Path, attach_type: u32) -> Result<Self> {
        // r0 = 1; exit
        let code: [u64; 2] = [0x0000_0001_0000_00b7, 0x0000_0000_0000_0095];
        let license = c"GPL";
        let (code_at, license_at) = (code.as_ptr() as u64, license.as_ptr() as u64);
        let mut attr = words(&[BPF_PROG_TYPE_CGROUP_SOCK_ADDR, 2]);
        put(&mut attr, 2, code_at);
        put(&mut attr, 4, license_at);
        for (to, name) in attr[12..16].iter_mut().zip(b"bystander\0\0\0\0\0\0\0".chunks_exact(4)) {
            *to = u32::from_ne_bytes([name[0], name[1], name[2], name[3]]);
        }
        attr[17] = attach_type;
        let program = owned(bpf(BPF_PROG_LOAD, &mut attr).context("load a program")?);
        let group = File::open(cgroup).with_context(|| format!("open {}", cgroup.display()))?;
        let mut attr = words(&[number(&program), group.as_raw_fd().cast_unsigned(), attach_type]);
        let link = owned(bpf(BPF_LINK_CREATE, &mut attr).context("attach a program")?);
        Ok(Self { _link: link })
    }
}

/// Makes (or removes) the nftables table `kube-proxy` of IPv4, empty.
pub fn nft_table(namespace: &Namespace, exists: bool) -> Result<()> {
    /// `NFT_MSG_NEWTABLE` and `NFT_MSG_DELTABLE` of subsystem 10.
    const NEW_TABLE: u16 = 10 << 8;
    const DELETE_TABLE: u16 = 10 << 8 | 2;
    const BATCH_BEGIN: u16 = 16;
    const BATCH_END: u16 = 17;
    let (kind, flags) = if exists { (NEW_TABLE, 0x400) } else { (DELETE_TABLE, 0) };
    let mut name = vec![15, 0, 1, 0];
    name.extend(b"kube-proxy\0\0");
    let batch = [
        message(BATCH_BEGIN, 0, 0, 10, &[]),
        message(kind, flags | 4, 2, 0, &name),
        message(BATCH_END, 0, 0, 10, &[]),
    ]
    .concat();
    namespace.run(|| {
        // SAFETY: takes no pointers; the descriptor is new.
        let socket = owned(Errno::result(unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)
        })?);
        // SAFETY: the bytes are as many as said.
        let sent = unsafe { libc::send(socket.as_raw_fd(), batch.as_ptr().cast(), batch.len(), 0) };
        ensure!(Errno::result(sent)? as usize == batch.len(), "sent {sent} bytes");
        let mut answer = [0_u8; 1024];
        // SAFETY: there is room for as many bytes as said.
        let got = unsafe {
            libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
        };
        ensure!(Errno::result(got)? >= 20, "an answer of {got} bytes");
        match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
            0 => Ok(()),
            error => bail!("nftables refuses: {}", Errno::from_raw(-error)),
        }
    })
}

/// A netlink message with the head of nfnetlink. Flag 1 is a request, 4 asks for an answer.
fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((20 + attributes.len() as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | 1).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn element(command: i64, map: &Path, key: &[u8], value: &[u8]) -> Result<()> {
    let map = open(map)?;
    let mut attr = words(&[number(&map)]);
    put(&mut attr, 2, key.as_ptr() as u64);
    // A command without a value refuses a pointer to one.
    put(&mut attr, 4, if value.is_empty() { 0 } else { value.as_ptr() as u64 });
    bpf(command, &mut attr)?;
    Ok(())
}

fn open(pin: &Path) -> Result<OwnedFd> {
    let path = std::ffi::CString::new(pin.as_os_str().as_encoded_bytes())?;
    let mut attr = Attr::default();
    put(&mut attr, 0, path.as_ptr() as u64);
    let fd = bpf(BPF_OBJ_GET, &mut attr).with_context(|| format!("open {}", pin.display()))?;
    Ok(owned(fd))
}

fn words(first: &[u32]) -> Attr {
    let mut attr = Attr::default();
    attr[..first.len()].copy_from_slice(first);
    attr
}

/// Puts eight bytes where word `at` begins.
fn put(attr: &mut Attr, at: usize, value: u64) {
    let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
    attr[at] = u32::from_ne_bytes([a, b, c, d]);
    attr[at + 1] = u32::from_ne_bytes([e, f, g, h]);
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just given us this descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn bpf(command: i64, attr: &mut Attr) -> Result<i32> {
    // SAFETY: `attr` is a valid `bpf_attr` for this command; the memory it points to outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    Ok(i32::try_from(Errno::result(rc)?)?)
}
