//! What the operator says of itself at `/v1/status`.

use std::collections::BTreeMap;

use portway_runtime::kubernetes::{ClientStatus, ElectorStatus, RecorderStatus, WatchStatus};
use serde::Serialize;

use crate::definitions::Definition;
use crate::observed::Misfit;
use crate::term::Guard;

/// `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    pub version: &'static str,
    pub uptime_seconds: f64,
    pub leadership: Leadership,
    pub api_server: ClientStatus,
    pub watches: Vec<Watch>,
    /// Kinds that the API server does not know; they are waited for.
    pub missing_kinds: Vec<&'static str>,
    /// Empty where another replica leads.
    pub controllers: Vec<Controller>,
    /// CustomResourceDefinitions, as far as this replica has come with them. Empty where another replica leads, and with
    /// `skip-crd-creation`.
    pub definitions: Vec<Definition>,
    /// Objects that cannot be read, by kind.
    pub misfits: BTreeMap<&'static str, Vec<Misfit>>,
    pub events: RecorderStatus,
    /// Of the configuration, and of what is not known of kinds.
    pub warnings: Vec<String>,
}

/// Who leads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Leadership {
    /// `beginning` (it has the lease and waits until the API server knows), `leading`, `stopping` (it leads no more and waits for its writes), `standby`, or `unknown`.
    pub state: &'static str,
    /// Since when it is so.
    pub since_seconds: f64,
    /// Who leads, as far as is known.
    pub holder: Option<String>,
    /// How often the lease was taken, by this.
    pub term: Option<u32>,
    /// What becomes of writes of the terms before.
    #[serde(flatten)]
    pub guard: Option<Guard>,
    /// `namespace/name` of the Lease.
    pub lease: String,
    pub elector: ElectorStatus,
    /// Writes that were sent, dry runs among them, and that were refused because the lease was not held.
    pub writes_passed: u64,
    pub writes_refused: u64,
    pub writes_under_way: usize,
}

/// A watch and what it has told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Watch {
    pub objects: u64,
    /// Its watch was told something lately; else no controller deletes because an object is not known.
    pub fresh: bool,
    #[serde(flatten)]
    pub watch: WatchStatus,
}

/// A controller of the leader.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Controller {
    pub name: String,
    /// What it does at the moment, in words.
    pub state: String,
    pub plans: u64,
    /// Of the last plan.
    pub plan_seconds: f64,
    pub plan_age_seconds: Option<f64>,
    /// Writes that the last plan wanted.
    pub wanted: u64,
    /// Writes by outcome.
    pub done: u64,
    pub late: u64,
    pub failed: u64,
    pub fenced: u64,
    /// Objects whose writes failed and that are left alone for a while.
    pub left_alone: u64,
    pub last_error: Option<String>,
    /// Kinds whose every write is refused, and the last error.
    pub refused: BTreeMap<&'static str, String>,
    pub troubles: Vec<Trouble>,
}

/// What is wrong and no write mends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    pub kind: &'static str,
    pub object: String,
    pub reason: &'static str,
    pub message: String,
}

impl From<crate::controller::Trouble> for Trouble {
    fn from(trouble: crate::controller::Trouble) -> Self {
        let crate::controller::Trouble { kind, object, uid: _, reason, message } = trouble;
        Self { kind: kind.name(), object, reason, message }
    }
}

/// `GET /v1/dump`: of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dump {
    /// All objects were told once.
    pub synced: bool,
    /// The newest that was told.
    pub version: u64,
    /// Versions by `namespace/name` or name.
    pub objects: BTreeMap<String, u64>,
}
