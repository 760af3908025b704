//! Who of several replicas held the lease when it wrote, by the API server's own record.

use std::net::IpAddr;
use std::time::Duration;

use crate::harness::cluster::Write;

/// The resource of the lease.
const LEASES: &str = "leases";

/// What the record says of replicas' writes.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Writes of whoever held the lease.
    pub fenced: usize,
    /// Those that came when their replica did not hold it, and that the API server refused.
    pub refused: usize,
    /// Those that came when their replica did not hold it, and went through.
    pub unfenced: Vec<Write>,
    /// Creates and patches that do not say of which term they are; a deletion says it where the record does not.
    pub nameless: Vec<Write>,
    /// Who held the lease, one after the other.
    pub holders: Vec<IpAddr>,
}

/// Judges `writes` of replicas whose lease lasts `lease`. A replica holds it from the arrival of its own last write of it
/// that went through for as long as it lasts, unless another's went through since.
pub fn judge(writes: &[Write], lease: Duration) -> Verdict {
    let mut all: Vec<&Write> = writes.iter().collect();
    all.sort_by_key(|write| write.received);
    let mut verdict = Verdict::default();
    let mut held: Option<&Write> = None;
    for write in all {
        if write.resource == LEASES {
            if write.is_done() {
                if let Some(from) = write.from.filter(|from| verdict.holders.last() != Some(from)) {
                    verdict.holders.push(from);
                }
                held = Some(write);
            }
            continue;
        }
        let says_term =
            write.manager.as_deref().is_some_and(|manager| manager.starts_with("portway-operator/"));
        if write.verb != "delete" && !says_term {
            verdict.nameless.push(write.clone());
        }
        let holds =
            held.is_some_and(|held| held.from == write.from && write.received < held.received + lease);
        match (holds, write.is_done()) {
            (true, _) => verdict.fenced += 1,
            (false, false) => verdict.refused += 1,
            (false, true) => verdict.unfenced.push(write.clone()),
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(6);

    fn write(from: u8, resource: &str, at: u64, code: u64) -> Write {
        Write {
            verb: "patch".to_owned(),
            resource: resource.to_owned(),
            name: String::new(),
            manager: Some("portway-operator/1".to_owned()),
            code,
            from: Some(IpAddr::from([192, 0, 2, from])),
            received: Duration::from_secs(at),
            answered: Duration::from_secs(at),
        }
    }

    #[test]
    fn a_write_counts_for_who_held_the_lease_when_it_came() {
        let writes = [
            write(1, "ciliumnodes", 0, 200),
            write(1, LEASES, 1, 201),
            write(2, LEASES, 2, 409),
            write(1, "ciliumnodes", 6, 201),
            write(1, "ciliumnodes", 7, 200),
            write(2, LEASES, 8, 200),
            write(2, "ciliumnodes", 9, 200),
            write(1, "ciliumnodes", 9, 409),
            write(1, "ciliumnodes", 9, 200),
        ];
        let verdict = judge(&writes, LEASE);
        assert_eq!((verdict.fenced, verdict.refused), (2, 1));
        let unfenced: Vec<_> = verdict.unfenced.iter().map(|write| write.received.as_secs()).collect();
        assert_eq!(unfenced, [0, 7, 9]);
        assert_eq!((verdict.holders.len(), verdict.nameless.len()), (2, 0));
        let nameless = Write { manager: None, ..write(1, "ciliumnodes", 9, 200) };
        let deletion = Write { verb: "delete".to_owned(), ..nameless.clone() };
        assert_eq!(judge(&[nameless.clone(), deletion], LEASE).nameless, [nameless]);
    }
}
