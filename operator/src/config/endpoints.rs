use std::time::Duration;

use portway_runtime::config::{Reader, parse_duration};

/// CiliumEndpoints and the slices they are gathered in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// `cilium-endpoint-gc-interval`; zero is off.
    pub gc_interval: Duration,
    /// `None` without `enable-cilium-endpoint-slice`.
    pub slices: Option<Slices>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    /// Endpoints of a slice, at most.
    pub most: usize,
    pub mode: SliceMode,
    /// `ces-rate-limits` as it was written: JSON.
    pub rate_limits: String,
}

/// `ces-slice-mode`: which endpoints go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceMode {
    /// Those of one identity.
    Identity,
    /// First come, first served.
    Fcfs,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Endpoints {
    let mode = match reader.text("ces-slice-mode").as_str() {
        "cesSliceModeFCFS" | "fcfs" => SliceMode::Fcfs,
        _ => SliceMode::Identity,
    };
    let slices = Slices {
        most: reader.number::<u32>("ces-max-ciliumendpoints-per-ces") as usize,
        mode,
        rate_limits: reader.text("ces-rate-limits"),
    };
    let is_on = reader.bool("enable-cilium-endpoint-slice");
    Endpoints {
        gc_interval: reader.parse("cilium-endpoint-gc-interval", parse_duration).unwrap_or_default(),
        slices: is_on.then_some(slices),
    }
}
