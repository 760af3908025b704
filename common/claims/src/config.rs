//! The keys by which agents and operator are told how a pod gets its identity: one table and one reading, for a label set
//! is one number only where all of them read the same.

use std::fs;

use portway_model::labels::LabelFilter;
use portway_runtime::config::{Invalid, Key, Kind, Reader, honoured as key};

/// The heading of the keys in the help.
pub const GROUP: &str = "Identities of pods";

/// What [`IdentityScheme::read`] reads, in the order of the help.
pub const KEYS: &[Key] = &[
    key(
        GROUP,
        "identity-management-mode",
        Kind::OneOf(&["agent", "operator", "both"]),
        "agent",
        "Who makes CiliumIdentity objects: the agents, the operator, which agents then wait for, or whoever comes first",
    ),
    key(
        GROUP,
        "labels",
        Kind::Text("rules such as k8s:app or k8s:!internal, regular expressions with spaces between them"),
        "",
        "Labels that make a pod's identity, beside those of the default: a rule with `!` leaves labels out, one without leaves \
         out all others; agents and operator need the same",
    ),
    key(
        GROUP,
        "label-prefix-file",
        Kind::Path,
        "",
        "A file of prefixes of labels, as JSON, instead of the default ones; agents and operator need the same",
    ),
    key(
        GROUP,
        "cluster-name",
        Kind::Text(
            "a name of up to 32 lower-case letters, digits and `-`, that begins and ends with a letter or digit",
        ),
        "default",
        "One of the labels of each identity of the cluster's pods",
    ),
    key(
        GROUP,
        "cluster-id",
        Kind::Integer { min: 0, max: 255 },
        "0",
        "The high part of the numbers of the cluster's identities",
    ),
];

/// What makes an identity, and who makes its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityScheme {
    pub mode: IdentityMode,
    /// Which labels make an identity.
    pub labels: LabelFilter,
    /// One of each identity's labels.
    pub cluster_name: String,
    /// The high part of the numbers.
    pub cluster_id: u16,
}

/// `identity-management-mode`: who makes CiliumIdentity objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityMode {
    /// The agents.
    Agent,
    /// The operator alone: agents wait for it.
    Operator,
    /// Whoever comes first: the agents do not wait.
    Both,
}

impl IdentityScheme {
    /// Reads [`KEYS`], which are part of the reader's table.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let mode = match reader.text("identity-management-mode").as_str() {
            "operator" => IdentityMode::Operator,
            "both" => IdentityMode::Both,
            _ => IdentityMode::Agent,
        };
        let cluster_id = reader.number("cluster-id");
        Self { mode, labels: labels(reader), cluster_name: cluster_name(reader, cluster_id), cluster_id }
    }
}

impl IdentityMode {
    /// Whether agents make objects.
    pub const fn agent_claims(self) -> bool {
        match self {
            Self::Agent | Self::Both => true,
            Self::Operator => false,
        }
    }

    /// Whether the operator makes objects.
    pub const fn operator_claims(self) -> bool {
        match self {
            Self::Operator | Self::Both => true,
            Self::Agent => false,
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
    let with = |rules: &str| base.clone().with(rules).map_err(|error| Invalid::new("", error.to_string()));
    reader.parse("labels", with).unwrap_or_else(|| base.clone())
}

fn cluster_name(reader: &mut Reader<'_>, cluster_id: u16) -> String {
    let name = reader.parse("cluster-name", parse_cluster_name).unwrap_or_default();
    if name == "default" && cluster_id != 0 {
        reader.refuse(
            &["cluster-id", "cluster-name"],
            "an id with a name: identities of clusters with the same name have the same labels",
            "set cluster-name to the name of this cluster, or cluster-id=0",
        );
    }
    name
}

/// Cilium's rule, whose labels and DNS names have it.
fn parse_cluster_name(name: &str) -> Result<String, Invalid> {
    const LONGEST: usize = 32;
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=LONGEST).contains(&name.len()) && name.bytes().all(allowed);
    let is_name = is_name && !name.starts_with('-') && !name.ends_with('-');
    if is_name { Ok(name.to_owned()) } else { Err(Invalid::new("", "write e.g. default")) }
}

#[cfg(test)]
mod tests {
    use portway_runtime::config::Sources;

    use super::*;

    fn read(arguments: &[&str]) -> Result<IdentityScheme, String> {
        let arguments = arguments.iter().map(Into::into);
        let settings = Sources { arguments, environment: [] }.read(KEYS);
        let mut reader = settings.reader();
        let scheme = IdentityScheme::read(&mut reader);
        reader.finish(scheme).map(|(scheme, _)| scheme).map_err(|problems| problems.to_string())
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
        let scheme = read(&[&format!("--cluster-name={name}"), "--cluster-id=255"]).unwrap();
        assert_eq!((scheme.cluster_name, scheme.cluster_id), (name, 255));
        for bad in ["", "A", "-a", "a-", "a.b", &"a".repeat(33)] {
            let error = read(&[&format!("--cluster-name={bad}")]).unwrap_err();
            assert!(error.contains("up to 32 lower-case letters"), "{bad}: {error}");
        }
        assert!(read(&["--cluster-id=256"]).unwrap_err().contains("cluster-id"));
        assert!(read(&["--cluster-id=1"]).unwrap_err().contains("have the same labels"));
    }
}
