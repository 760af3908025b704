use std::cmp::Ordering;

/// A semantic version, as far as it says which of two is the newer one: what is behind `+` does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    /// Behind `-`: `rc`, `1`. With it a version is older than without.
    pre_release: Vec<String>,
}

impl Version {
    /// `None` where it is none. A `v` before it and missing numbers are forgiven, as Cilium does.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once('+').map_or(text, |(version, _)| version);
        let (core, pre_release) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
        let mut numbers = [0; 3];
        let mut parts = core.split('.');
        for (n, number) in numbers.iter_mut().enumerate() {
            match parts.next() {
                Some(part) if part.bytes().all(|b| b.is_ascii_digit()) => *number = part.parse().ok()?,
                Some(_) => return None,
                None if n > 0 => {}
                None => return None,
            }
        }
        let pre_release: Vec<String> =
            pre_release.map(|pre| pre.split('.').map(str::to_owned).collect()).unwrap_or_default();
        (parts.next().is_none() && pre_release.iter().all(|part| !part.is_empty()))
            .then_some(Self { numbers, pre_release })
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let part = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        let pre_release = || match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let parts = self.pre_release.iter().zip(&other.pre_release);
                let differs = parts.map(|(a, b)| part(a, b)).find(|order| order.is_ne());
                differs.unwrap_or_else(|| self.pre_release.len().cmp(&other.pre_release.len()))
            }
        };
        self.numbers.cmp(&other.numbers).then_with(pre_release)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_semantic_versioning_says() {
        // From semver.org, and Cilium's own.
        let rising = [
            "0.0.9",
            "0.1.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.9.0",
            "1.33.11",
            "2",
        ];
        let versions: Vec<_> = rising.iter().map(|text| Version::parse(text).unwrap()).collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(Version::parse("v1.2.3+build.7"), Version::parse("1.2.3"));
        for text in
            ["", "v", "1.", "1.2.3.4", "1.x", "-1", "1.2.3-", "1.2.3-a..b", "99999999999999999999", "latest"]
        {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
