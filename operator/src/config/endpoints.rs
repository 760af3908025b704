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

#[cfg(test)]
mod tests {
    use super::super::{Invocation, load};
    use super::*;
    use crate::controller::Pace;

    fn slices(flags: &[&str]) -> Result<Option<slices::Config>, String> {
        let flags = ["--k8s-api-server=http://127.0.0.1:6443"].iter().chain(flags).map(Into::into).collect();
        let loaded = load(Invocation { arguments: flags, ..Invocation::default() });
        loaded.map(|loaded| loaded.config.endpoints.slices).map_err(|problems| problems.to_string())
    }

    #[test]
    fn slices_are_made_where_they_are_asked_for_and_as_fast_as_is_said() {
        assert_eq!(slices(&["--ces-slice-mode=cesSliceModeFCFS"]), Ok(None));
        let pace = |flags: &[&str]| {
            let on = ["--enable-cilium-endpoint-slice=true"];
            let slices = slices(&[&on, flags].concat()).unwrap().unwrap();
            (slices.filling, slices.limits.pace(100))
        };
        let by_identity = Filling { most: 100, mode: Mode::Identity };
        assert_eq!(pace(&[]), (by_identity, Pace { batch: 20, per_second: 10.0 }));
        let flags = ["--ces-slice-mode=cesSliceModeFCFS", "--ces-max-ciliumendpoints-per-ces=7"];
        assert_eq!(pace(&flags).0, Filling { most: 7, mode: Mode::Fcfs });
        let older = ["--ces-write-qps-limit=2.5", "--ces-write-qps-burst=3"];
        assert_eq!(pace(&older).1, Pace { batch: 3, per_second: 2.5 });
        let both = [
            older[0],
            r#"--ces-rate-limits=[{"nodes":0,"limit":4,"burst":5},{"nodes":200,"limit":6,"burst":7}]"#,
        ];
        assert_eq!(pace(&both).1, Pace { batch: 5, per_second: 4.0 });
    }

    #[test]
    fn rates_that_allow_nothing_are_refused_by_the_name_of_their_key() {
        for (flag, key) in [
            ("--ces-rate-limits=[]", "ces-rate-limits"),
            (r#"--ces-rate-limits=[{"nodes":0,"limit":0,"burst":1}]"#, "ces-rate-limits"),
            ("--ces-write-qps-limit=0", "ces-write-qps-limit"),
            ("--ces-write-qps-limit=fast", "ces-write-qps-limit"),
            ("--ces-write-qps-burst=0", "ces-write-qps-burst"),
        ] {
            let error = slices(&[flag]).unwrap_err();
            assert!(error.contains(key), "{flag}: {error}");
        }
    }
}
