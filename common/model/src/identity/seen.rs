use portway_datapath::NumericIdentity;

use crate::k8s::Uid;

/// What the protocol of claims needs to know of a CiliumIdentity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    pub number: NumericIdentity,
    pub version: Version,
    pub standing: Standing,
    /// Garbage collection has marked it (annotation [`HEARTBEAT`](super::HEARTBEAT)).
    pub is_marked: bool,
    /// `metadata.creationTimestamp`, seconds since 1970; 0: unknown.
    pub created: i64,
}

impl Seen {
    /// Of several identities of a label set the one with the smallest rank counts. Everybody who sees the same ones chooses
    /// the same; one that others add later does not go before one that is used.
    pub fn rank(&self) -> impl Ord + use<> {
        (self.standing, self.created, self.number)
    }
}

/// Which state of an object: the precondition of updates and deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub resource_version: u64,
}

/// Whether an identity may be used. Smaller ones go before larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Without an annotation, as those of others are.
    Confirmed,
    /// Tentative, to replace one that vanished while it was in use.
    Again,
    /// Tentative.
    New,
}

impl Standing {
    /// The value of the annotation [`CLAIM`](super::CLAIM); a confirmed identity has none.
    pub const fn annotation(self) -> Option<&'static str> {
        match self {
            Self::Confirmed => None,
            Self::Again => Some("again"),
            Self::New => Some("new"),
        }
    }

    /// What the annotation says. A value of somebody else's is tentative, too.
    pub fn read(annotation: Option<&str>) -> Self {
        match annotation {
            None => Self::Confirmed,
            Some("again") => Self::Again,
            Some(_) => Self::New,
        }
    }
}
