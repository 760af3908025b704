//! What the runtime says on standard input.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::failure::{Failure, code};
use crate::protocol::{AttachmentId, DEFAULT_SOCKET};
use crate::result::Attached;
use crate::version::Version;

/// The network's configuration, of which other fields are other plugins'.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NetworkConfig {
    #[serde(rename = "cniVersion", default)]
    cni_version: Option<String>,
    #[serde(default)]
    pub name: String,
    /// The agent's socket.
    #[serde(rename = "socket-path", default = "default_socket")]
    pub socket_path: PathBuf,
    #[serde(rename = "prevResult", default)]
    previous: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments", default, deserialize_with = "listed")]
    valid: Option<Vec<AttachmentId>>,
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

/// A field that is there is a list: `null` is how Go writes an empty one.
fn listed<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Vec<AttachmentId>>, D::Error> {
    Option::<Vec<AttachmentId>>::deserialize(value).map(|list| Some(list.unwrap_or_default()))
}

impl NetworkConfig {
    /// # Errors
    /// No JSON, or a field of another type than it has.
    pub fn parse(text: &[u8]) -> Result<Self, Failure> {
        serde_json::from_slice(text).map_err(|error| {
            let msg = format!("the network's configuration on standard input cannot be read: {error}");
            Failure::new(code::DECODING, msg, "look at the conflist in the runtime's CNI directory")
        })
    }

    /// The version that the runtime wrote, for the answer to it; none is the oldest by the specification.
    pub fn version_text(&self) -> &str {
        self.cni_version.as_deref().unwrap_or("0.1.0")
    }

    /// # Errors
    /// A version that is not spoken.
    pub fn version(&self) -> Result<Version, Failure> {
        let text = self.version_text();
        Version::from_name(text).ok_or_else(|| {
            let spoken = Version::ALL.map(Version::name).join(", ");
            Failure::new(
                code::INCOMPATIBLE_VERSION,
                format!("cniVersion {text} is not spoken"),
                format!("set cniVersion in the conflist to one of {spoken}"),
            )
        })
    }

    /// # Errors
    /// The network has no name, by which its attachments are told from those of others.
    pub fn named(&self) -> Result<(), Failure> {
        if !self.name.is_empty() {
            return Ok(());
        }
        let details = "give the conflist in the runtime's CNI directory a \"name\"";
        Err(Failure::new(code::INVALID_CONFIG, "the network's configuration has no name", details))
    }

    /// # Errors
    /// `prevResult` is no result.
    pub fn previous(&self) -> Result<Option<Attached>, Failure> {
        let previous = self.previous.as_ref().filter(|value| !value.is_null());
        previous
            .map(|value| {
                Attached::deserialize(value).map_err(|error| {
                    let msg = format!("prevResult of network {} cannot be read: {error}", self.name);
                    Failure::new(
                        code::DECODING,
                        msg,
                        "look at the plugins before portway-cni in the conflist",
                    )
                })
            })
            .transpose()
    }

    /// `prevResult` as it came, where the agent's answer is nothing else: it may have fields that only later plugins and the
    /// runtime know.
    pub fn passed_on(&self, answer: &Attached) -> Option<Value> {
        let is_previous = self.previous().is_ok_and(|previous| previous.as_ref() == Some(answer));
        self.previous.clone().filter(|_| is_previous)
    }

    /// What GC leaves.
    ///
    /// # Errors
    /// The list is missing: taken for an empty one it would remove every pod's network.
    pub fn valid_attachments(&self) -> Result<Vec<AttachmentId>, Failure> {
        self.valid.clone().ok_or_else(|| {
            let msg = format!("network {}: GC came without cni.dev/valid-attachments", self.name);
            Failure::new(
                code::INVALID_CONFIG,
                msg,
                "nothing was removed; the runtime must list what is in use",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> NetworkConfig {
        NetworkConfig::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_version_that_is_not_spoken_names_those_that_are() {
        assert_eq!(parse(r#"{"cniVersion":"1.1.0"}"#).version().unwrap(), Version::V1_1_0);
        let failure = parse(r#"{"cniVersion":"0.2.0"}"#).version().unwrap_err();
        assert_eq!(failure.code, code::INCOMPATIBLE_VERSION);
        assert!(failure.details.contains("0.3.1, 0.4.0, 1.0.0, 1.1.0"), "{failure}");
        assert_eq!(parse("{}").version().unwrap_err().code, code::INCOMPATIBLE_VERSION);
    }

    #[test]
    fn gc_without_a_list_is_refused_and_an_empty_list_is_one() {
        assert_eq!(parse("{}").valid_attachments().unwrap_err().code, code::INVALID_CONFIG);
        for empty in ["[]", "null"] {
            let config = parse(&format!(r#"{{"cni.dev/valid-attachments":{empty}}}"#));
            assert_eq!(config.valid_attachments().unwrap(), [], "{empty}");
        }
        let config = parse(r#"{"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}"#);
        let id = AttachmentId { container: "c".to_owned(), interface: "eth0".to_owned() };
        assert_eq!(config.valid_attachments().unwrap(), [id]);
    }

    #[test]
    fn the_result_of_a_plugin_before_is_read_in_old_and_new_form() {
        let old = r#"{"prevResult":{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/n"}],
            "ips":[{"version":"4","address":"10.1.0.2/24","interface":0,"gateway":"10.1.0.1"}],"dns":{}}}"#;
        let previous = parse(old).previous().unwrap().unwrap();
        assert_eq!(previous.ips[0].ip(), Some("10.1.0.2".parse().unwrap()));
        assert_eq!(parse(r#"{"prevResult":null}"#).previous().unwrap(), None);
        assert_eq!(parse(r#"{"prevResult":[1]}"#).previous().unwrap_err().code, code::DECODING);
    }
}
