//! How pods get their identities.

use std::fs;
use std::time::Duration;

use portway_model::labels::LabelFilter;
use portway_runtime::config::{Invalid, Reader, parse_duration, values};

use super::parse;

/// The longest grace that can be asked for: nobody waits so long for other nodes to hear of a change.
const LONGEST_GRACE: Duration = Duration::from_secs(600);

const LONGEST_CRD_WAIT: Duration = Duration::from_secs(3600);
const DEFAULT_CRD_WAIT: Duration = Duration::from_secs(300);

/// Identities, where there is a pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    pub mode: IdentityMode,
    /// Which labels make an identity.
    pub labels: LabelFilter,
    /// One of each identity's labels.
    pub cluster_name: String,
    /// The high part of the numbers.
    pub cluster_id: u16,
    /// How long the number that an endpoint had before stays claimed.
    pub change_grace: Duration,
    /// Other nodes' endpoints are read from CiliumEndpointSlices, not from CiliumEndpoints.
    pub endpoint_slices: bool,
    /// How long CustomResourceDefinitions may be missing at a start.
    pub crd_wait: Duration,
}

/// `identity-management-mode`: who makes CiliumIdentity objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityMode {
    /// The agents.
    Agent,
    /// The operator alone: agents wait for it.
    Operator,
    /// Both: the agents do not wait.
    Both,
}

impl IdentityMode {
    /// Whether this agent makes objects.
    pub const fn agent_claims(self) -> bool {
        match self {
            Self::Agent | Self::Both => true,
            Self::Operator => false,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Both => "both",
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Identities {
    let mode = match reader.text("identity-management-mode").as_str() {
        "operator" => IdentityMode::Operator,
        "both" => IdentityMode::Both,
        _ => IdentityMode::Agent,
    };
    let grace = |value: &str| {
        let parsed = parse_duration(value).ok().filter(|duration| *duration <= LONGEST_GRACE);
        parsed.ok_or_else(|| Invalid::new("a duration of at most 10m, such as 5s", "write 5s (the default)"))
    };
    let crd_wait = |value: &str| {
        let parsed = parse_duration(value).ok().filter(|duration| *duration <= LONGEST_CRD_WAIT);
        parsed.ok_or_else(|| Invalid::new("a duration of at most 1h, such as 5m", "write 5m (the default)"))
    };
    Identities {
        mode,
        labels: labels(reader),
        cluster_name: cluster_name(reader),
        cluster_id: reader.number("cluster-id"),
        endpoint_slices: reader.bool("enable-cilium-endpoint-slice"),
        crd_wait: reader.parse("crd-wait-timeout", crd_wait).unwrap_or(DEFAULT_CRD_WAIT),
        change_grace: reader.parse("identity-change-grace-period", grace).unwrap_or(Duration::from_secs(5)),
    }
}

/// Those of the file, or the default ones, with the rules of `labels` after them.
fn labels(reader: &mut Reader<'_>) -> LabelFilter {
    let base = reader.parse("label-prefix-file", |path| match path {
        "" => Ok(LabelFilter::default()),
        _ => {
            let bad = |problem: String| {
                Invalid::new("a file of prefixes of labels", format!("mend the file, which {problem}"))
            };
            let json = fs::read_to_string(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
            LabelFilter::from_file(&json).map_err(|error| bad(error.to_string()))
        }
    });
    let base = base.unwrap_or_default();
    let with = |rules: &str| base.clone().with(rules).map_err(|error| parse::mend(&error.to_string()));
    reader.parse("labels", with).unwrap_or_else(|| base.clone())
}

fn cluster_name(reader: &mut Reader<'_>) -> String {
    let name = reader.parse("cluster-name", values::cluster_name);
    let name = name.unwrap_or_default();
    if name == "default" && reader.number::<u16>("cluster-id") != 0 {
        reader.refuse(
            &["cluster-id", "cluster-name"],
            "an id with a name: identities of clusters with the same name have the same labels",
            "set cluster-name to the name of this cluster, or cluster-id=0",
        );
    }
    name
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::config::{Identities, Invocation, load};

    fn read(arguments: &[&str]) -> Result<Identities, String> {
        let required = ["--source-dir=/m", "--cgroup-root=/c", "--enable-pod-network=true"];
        let arguments = required.iter().chain(arguments).map(Into::into).collect();
        let loaded = load(Invocation { arguments, environment: Vec::new(), host_name: "a".to_owned() });
        let loaded = loaded.map_err(|problems| problems.to_string())?;
        Ok(loaded.config.pod_network.ok_or("the pod network is off")?.identities)
    }

    #[test]
    fn labels_come_after_those_of_the_file_or_of_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.json");
        let file = format!("--label-prefix-file={}", path.display());
        fs::write(&path, r#"{"version": 1, "valid-prefixes": [{"prefix": "a.", "source": "k8s"}]}"#).unwrap();
        let default = read(&[]).unwrap().labels.to_string();
        assert!(default.starts_with("reserved:.* any:io\\.kubernetes"), "{default}");
        let labels = read(&["--labels=k8s:app k8s:!x.*"]).unwrap().labels.to_string();
        assert_eq!(labels, format!("{default} k8s:app k8s:!x.*"));
        let labels = read(&[&file, "--labels=k8s:app"]).unwrap().labels.to_string();
        assert_eq!(labels, "k8s:a. k8s:app");

        fs::write(&path, r#"{"version": 2}"#).unwrap();
        let error = read(&[&file]).unwrap_err();
        assert!(error.contains("label-prefix-file") && error.contains("version 2 is not read"), "{error}");
        let error = read(&["--label-prefix-file=/nowhere/labels.json"]).unwrap_err();
        assert!(error.contains("cannot be read: No such file"), "{error}");
        let error = read(&["--labels=!k8s:app"]).unwrap_err();
        assert!(error.contains("labels=\"!k8s:app\"") && error.contains("write \"k8s:!app\""), "{error}");
    }

    #[test]
    fn a_cluster_has_a_name_and_its_id_needs_one() {
        let name = "a".repeat(32);
        let identities = read(&[&format!("--cluster-name={name}"), "--cluster-id=255"]).unwrap();
        assert_eq!((identities.cluster_name, identities.cluster_id), (name, 255));
        for bad in ["", "A", "-a", "a-", "a.b", &"a".repeat(33)] {
            let error = read(&[&format!("--cluster-name={bad}")]).unwrap_err();
            assert!(error.contains("up to 32 lower-case letters"), "{bad}: {error}");
        }
        assert!(read(&["--cluster-id=256"]).unwrap_err().contains("cluster-id"));
        assert!(read(&["--cluster-id=1"]).unwrap_err().contains("have the same labels"));
    }
}
