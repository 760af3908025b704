//! `ip_local_reserved_ports`: ports that the kernel does not hand out as ephemeral ones. Where NodePorts lie in the
//! ephemeral range, they are added, so that no outgoing connection takes one.
//!
//! What was added is noted in the state directory; [`ReservedPorts::restore`] takes exactly that back and keeps
//! what others reserved before and since.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::PortRange;

const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// A set of ports, written as the kernel does: `80,30000-32767`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet(BTreeSet<u16>);

#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds {text:?}, which is no list of ports", path.display())]
    Text { path: PathBuf, text: String },
}

/// The two files of the kernel and the note of what was added.
#[derive(Clone, Debug)]
pub struct ReservedPorts {
    reserved: PathBuf,
    ephemeral: PathBuf,
    note: PathBuf,
}

impl ReservedPorts {
    /// Of the network namespace that the process is in.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            reserved: RESERVED.into(),
            ephemeral: EPHEMERAL.into(),
            note: state_dir.join("added-reserved-ports"),
        }
    }

    /// Reserves `node_ports` where they overlap the ephemeral ports. Returns what was added, which is nothing where
    /// they don't overlap or are reserved already. What was added for an earlier range is taken back first.
    ///
    /// # Errors
    /// A file cannot be read or written; nothing was reserved that is not noted.
    pub fn protect(&self, node_ports: PortRange) -> Result<PortSet, PortsError> {
        let wanted = PortSet((node_ports.first..=node_ports.last).collect());
        let is_needed = !self.ephemeral()?.0.is_disjoint(&wanted.0);
        self.take_back(|port| !(is_needed && wanted.0.contains(&port)))?;
        if !is_needed {
            return Ok(PortSet::default());
        }
        let reserved = self.read(&self.reserved)?;
        let added = PortSet(wanted.0.difference(&reserved.0).copied().collect());
        if added.0.is_empty() {
            return Ok(added);
        }
        // The note comes first: a crash between the two leaves ports noted that were never added, and taking those
        // back does nothing.
        let noted = PortSet(self.noted()?.0.union(&added.0).copied().collect());
        if let Some(dir) = self.note.parent() {
            std::fs::create_dir_all(dir).map_err(file("make", dir))?;
        }
        std::fs::write(&self.note, noted.to_string()).map_err(file("write", &self.note))?;
        let all = PortSet(reserved.0.union(&added.0).copied().collect());
        std::fs::write(&self.reserved, all.to_string()).map_err(file("write", &self.reserved))?;
        Ok(added)
    }

    /// Takes back what was added. Returns that, which is nothing where nothing was noted.
    ///
    /// # Errors
    /// A file cannot be read or written; the note stays.
    pub fn restore(&self) -> Result<PortSet, PortsError> {
        self.take_back(|_| true)
    }

    /// Takes back those ports of what was added; returns them.
    fn take_back(&self, is_unwanted: impl Fn(u16) -> bool) -> Result<PortSet, PortsError> {
        let (noted, reserved) = (self.noted()?, self.read(&self.reserved)?);
        let (unwanted, wanted): (BTreeSet<u16>, _) = noted.0.into_iter().partition(|port| is_unwanted(*port));
        let removed = PortSet(unwanted.intersection(&reserved.0).copied().collect());
        if !removed.0.is_empty() {
            let left = PortSet(reserved.0.difference(&removed.0).copied().collect());
            // An empty write is none at all; a newline clears the set.
            std::fs::write(&self.reserved, format!("{left}\n")).map_err(file("write", &self.reserved))?;
        }
        let wanted = PortSet(wanted);
        if !wanted.is_empty() {
            if !unwanted.is_empty() {
                std::fs::write(&self.note, wanted.to_string()).map_err(file("write", &self.note))?;
            }
            return Ok(removed);
        }
        match std::fs::remove_file(&self.note) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(file("remove", &self.note)(source))
            }
            Ok(()) | Err(_) => Ok(removed),
        }
    }

    fn noted(&self) -> Result<PortSet, PortsError> {
        if self.note.exists() { self.read(&self.note) } else { Ok(PortSet::default()) }
    }

    fn read(&self, path: &Path) -> Result<PortSet, PortsError> {
        let text = std::fs::read_to_string(path).map_err(file("read", path))?;
        PortSet::parse(&text).ok_or_else(|| PortsError::Text { path: path.to_owned(), text })
    }

    fn ephemeral(&self) -> Result<PortSet, PortsError> {
        let path = &self.ephemeral;
        let text = std::fs::read_to_string(path).map_err(file("read", path))?;
        let mut ends = text.split_whitespace().map(str::parse::<u16>);
        match (ends.next(), ends.next()) {
            (Some(Ok(first)), Some(Ok(last))) => Ok(PortSet((first..=last).collect())),
            _ => Err(PortsError::Text { path: path.clone(), text }),
        }
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PortsError {
    let path = path.to_owned();
    move |source| PortsError::File { action, path, source }
}

impl PortSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut ports = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            match part.split_once('-') {
                Some((first, last)) => ports.extend(first.parse::<u16>().ok()?..=last.parse().ok()?),
                None => {
                    ports.insert(part.parse().ok()?);
                }
            }
        }
        Some(Self(ports))
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ports = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = ports.next() {
            let mut last = first;
            while let Some(next) = ports.next_if(|next| last.checked_add(1) == Some(*next)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const NODE_PORTS: PortRange = PortRange { first: 30_000, last: 32_767 };

    /// Files that hold what the kernel's would.
    fn files(reserved: &str, ephemeral: &str) -> (TempDir, ReservedPorts) {
        let dir = tempfile::tempdir().unwrap();
        let ports = ReservedPorts {
            reserved: dir.path().join("reserved"),
            ephemeral: dir.path().join("ephemeral"),
            note: dir.path().join("state/note"),
        };
        std::fs::write(&ports.reserved, reserved).unwrap();
        std::fs::write(&ports.ephemeral, ephemeral).unwrap();
        (dir, ports)
    }

    fn reserved(ports: &ReservedPorts) -> String {
        std::fs::read_to_string(&ports.reserved).unwrap().trim().to_owned()
    }

    #[test]
    fn node_ports_in_the_ephemeral_range_join_what_is_reserved() {
        let (_dir, ports) = files("8080,31000-31010\n", "1024\t65535\n");
        assert_eq!(ports.protect(NODE_PORTS).unwrap().to_string(), "30000-30999,31011-32767");
        assert_eq!(reserved(&ports), "8080,30000-32767");
        // A restart adds nothing and forgets nothing.
        assert!(ports.protect(NODE_PORTS).unwrap().is_empty());
        assert_eq!(ports.restore().unwrap().to_string(), "30000-30999,31011-32767");
        assert_eq!(reserved(&ports), "8080,31000-31010");
        assert!(ports.restore().unwrap().is_empty());
    }

    #[test]
    fn node_ports_outside_the_ephemeral_range_are_left_alone() {
        let (_dir, ports) = files("\n", "32768\t60999\n");
        assert!(ports.protect(NODE_PORTS).unwrap().is_empty());
        assert_eq!(reserved(&ports), "");
        assert!(!ports.note.exists());
    }

    #[test]
    fn another_range_gives_back_what_the_old_one_had() {
        let (_dir, ports) = files("8080\n", "20000\t60999\n");
        ports.protect(NODE_PORTS).unwrap();
        let moved = PortRange { first: 32_000, last: 33_000 };
        assert_eq!(ports.protect(moved).unwrap().to_string(), "32768-33000");
        assert_eq!(reserved(&ports), "8080,32000-33000");
        // One that is no part of the ephemeral range needs nothing.
        let outside = PortRange { first: 10_000, last: 10_999 };
        assert!(ports.protect(outside).unwrap().is_empty());
        assert_eq!(reserved(&ports), "8080");
        assert!(ports.restore().unwrap().is_empty());
        // What someone else reserved in the old range stays, also where it is in the new one.
        std::fs::write(&ports.reserved, "30000,32000\n").unwrap();
        ports.protect(NODE_PORTS).unwrap();
        ports.protect(moved).unwrap();
        assert_eq!(reserved(&ports), "30000,32000-33000");
        ports.restore().unwrap();
        assert_eq!(reserved(&ports), "30000,32000");
    }

    #[test]
    fn what_others_changed_since_is_kept() {
        let (_dir, ports) = files("\n", "30000\t60999\n");
        ports.protect(NODE_PORTS).unwrap();
        std::fs::write(&ports.reserved, "30000-32000,50000\n").unwrap();
        assert_eq!(ports.restore().unwrap().to_string(), "30000-32000");
        assert_eq!(reserved(&ports), "50000");
    }

    #[test]
    fn sets_are_written_as_the_kernel_does() {
        for text in ["", "80", "80,443", "80-82,65535", "0-65535"] {
            assert_eq!(PortSet::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(PortSet::parse("80,81,82\n").unwrap().to_string(), "80-82");
        assert!(PortSet::parse("80,x").is_none() && PortSet::parse("70000").is_none());
    }
}
