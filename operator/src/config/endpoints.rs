use std::time::Duration;

use portway_runtime::config::{Invalid, Origin, Reader, parse_duration};

use crate::slices::{self, Filling, LimitsError, Mode, RateLimits};

/// CiliumEndpoints and the slices they are gathered in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// `cilium-endpoint-gc-interval`; zero is off.
    pub gc_interval: Duration,
    /// `None` without `enable-cilium-endpoint-slice`.
    pub slices: Option<slices::Config>,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Endpoints {
    let mode = match reader.text("ces-slice-mode").as_str() {
        "cesSliceModeFCFS" | "fcfs" => Mode::Fcfs,
        _ => Mode::Identity,
    };
    let filling = Filling { most: reader.number::<u32>("ces-max-ciliumendpoints-per-ces") as usize, mode };
    let slices = limits(reader).map(|limits| slices::Config { filling, limits });
    let is_on = reader.bool("enable-cilium-endpoint-slice");
    Endpoints {
        gc_interval: reader.parse("cilium-endpoint-gc-interval", parse_duration).unwrap_or_default(),
        slices: slices.filter(|_| is_on),
    }
}

/// Who has said nothing of `ces-rate-limits` may have said the keys that Cilium had before it.
fn limits(reader: &mut Reader<'_>) -> Option<RateLimits> {
    let invalid = |error: LimitsError| Invalid::new("", format!("it {error}"));
    let limits = reader.parse("ces-rate-limits", |text| RateLimits::parse(text).map_err(invalid))?;
    let is_said = |key| reader.said(key).is_some_and(|said| said.origin != Origin::Default);
    let (limit, burst) = ("ces-write-qps-limit", "ces-write-qps-burst");
    if is_said("ces-rate-limits") || !(is_said(limit) || is_said(burst)) {
        return Some(limits);
    }
    let number = || Invalid::new("", "write a number above 0");
    let parse =
        |text: &str| text.parse().ok().and_then(|limit| RateLimits::flat(limit, 1).map(|_| limit).ok());
    let per_second = reader.parse(limit, |text| parse(text).ok_or_else(number))?;
    let at_once = reader.parse(burst, |text| text.parse().ok().filter(|n| *n > 0).ok_or_else(number))?;
    RateLimits::flat(per_second, at_once).ok()
}
