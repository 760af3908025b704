//! Whether what the maps hold makes sense: what an agent that died at any moment leaves behind does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use portway_datapath::layout::Sizes;
use portway_datapath::{BackendIndex, BackendSlot, FrontendKey, Protocol, RunHeader, ServiceIndex};
use portway_model::tables::{ServiceDump, TableDump};

use super::layout::MapId;

/// Something in the maps that no agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// A published run that ends past the end of `pw_runs`.
    RunPastEnd { service: ServiceIndex, run: u32, backends: u32 },
    /// A set that is longer than the run, or tables past the end of `pw_maglev`.
    Header { service: ServiceIndex },
    /// Two published runs share records.
    RunsOverlap { service: ServiceIndex, other: ServiceIndex },
    /// A backend in a published run whose slot in `pw_backends` is not that backend's.
    Backend { service: ServiceIndex, backend: BackendIndex },
    /// A frontend whose value was not written for it.
    FrontendValue { key: FrontendKey },
    /// A frontend of a service that is not published.
    FrontendService { key: FrontendKey, service: ServiceIndex },
}

/// Whether what a header says of the run at `run` fits the maps.
pub(super) fn check_header(
    service: ServiceIndex,
    run: u32,
    header: &RunHeader,
    sizes: &Sizes,
) -> Result<(), Inconsistency> {
    let backends = u64::from(header.cluster_start) + u64::from(header.cluster_len);
    if u64::from(run) + u64::from(RunHeader::RECORDS) + backends > u64::from(sizes.runs) {
        return Err(Inconsistency::RunPastEnd { service, run, backends: header.backends() });
    }
    // Up to two tables stand one after the other.
    let maglev_end = u64::from(header.maglev_at) + u64::from(header.maglev_size);
    if u64::from(header.local_len) > backends
        || header.cluster_start > header.local_len
        || (header.maglev_size != 0 && maglev_end > u64::from(sizes.maglev))
    {
        return Err(Inconsistency::Header { service });
    }
    Ok(())
}

/// What in a whole dump contradicts itself.
pub(super) fn check(dump: &TableDump, sizes: &Sizes) -> Result<(), Inconsistency> {
    let slots: BTreeMap<_, _> = dump.backends.iter().map(|(index, slot)| (*index, slot)).collect();
    let mut runs = Vec::with_capacity(dump.services.len());
    for service in &dump.services {
        let Some(run) = service.word.run() else { continue };
        check_header(service.index, run.get(), &service.header, sizes)?;
        let end = run.get() + RunHeader::RECORDS + service.header.backends();
        runs.push((run.get(), end, service.index));
        check_backends(service, |backend| slots.get(&backend).copied())?;
    }
    runs.sort_unstable();
    for ((_, end, service), (next, _, other)) in runs.iter().zip(runs.iter().skip(1)) {
        if end > next {
            return Err(Inconsistency::RunsOverlap { service: *service, other: *other });
        }
    }
    let published: BTreeSet<_> = dump.services.iter().map(|service| service.index).collect();
    for (key, value) in &dump.frontends {
        if !value.is_of(key) || value.kind().is_none() || Protocol::from_number(key.protocol).is_none() {
            return Err(Inconsistency::FrontendValue { key: *key });
        }
        if !published.contains(&value.service()) {
            return Err(Inconsistency::FrontendService { key: *key, service: value.service() });
        }
    }
    Ok(())
}

fn check_backends<'a>(
    service: &ServiceDump,
    slot: impl Fn(BackendIndex) -> Option<&'a BackendSlot>,
) -> Result<(), Inconsistency> {
    for backend in &service.backends {
        let known = slot(backend.index).is_some_and(|slot| {
            slot.service == service.index && slot.addr == backend.addr && slot.port == backend.port
        });
        if !known {
            return Err(Inconsistency::Backend { service: service.index, backend: backend.index });
        }
    }
    Ok(())
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunPastEnd { service, run, backends } => write!(
                f,
                "service {} is published at record {run} with {backends} backends, past the end of {}",
                service.get(),
                MapId::Runs
            ),
            Self::Header { service } => {
                write!(f, "the sets or tables of service {} don't fit its run", service.get())
            }
            Self::RunsOverlap { service, other } => {
                write!(f, "the runs of services {} and {} overlap", service.get(), other.get())
            }
            Self::Backend { service, backend } => write!(
                f,
                "service {} has backend {}, which {} gives to somebody else",
                service.get(),
                backend.get(),
                MapId::Backends
            ),
            Self::FrontendValue { key } => {
                write!(f, "the value of frontend {} was not written for it", frontend(key))
            }
            Self::FrontendService { key, service } => {
                write!(
                    f,
                    "frontend {} belongs to service {}, which is not published",
                    frontend(key),
                    service.get()
                )
            }
        }
    }
}

/// `10.96.0.1:443/TCP`.
pub(super) fn frontend(key: &FrontendKey) -> String {
    let socket = std::net::SocketAddr::new(key.addr.into(), key.port.get());
    match Protocol::from_number(key.protocol) {
        Some(protocol) => format!("{socket}/{protocol}"),
        None => format!("{socket}/{}", key.protocol),
    }
}
