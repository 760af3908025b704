//! The keys that say how the API server is reached: one table and one reading for all programs.

use std::path::PathBuf;
use std::time::Duration;

use super::client::ClientOptions;
use crate::config::{Invalid, Key, Kind, Reader, honoured as key, parse_duration, values};

const SERVERS: Kind = Kind::Text("URLs such as https://192.0.2.1:6443, separated by commas, or nothing");

impl ClientOptions {
    /// The heading of the keys in the help.
    pub const GROUP: &str = "The API server";

    /// What [`Self::read`] reads beside the rate, in the order of the help.
    pub const KEYS: &[Key] = &[
        key(
            Self::GROUP,
            "k8s-kubeconfig-path",
            Kind::Path,
            "",
            "Reach the API server as this kubeconfig says; without it a pod uses its service account",
        ),
        key(
            Self::GROUP,
            "k8s-api-server",
            SERVERS,
            "",
            "The API server's address, in place of the kubeconfig's or the pod environment's; agents need one that is \
             reached without the services that they program",
        ),
        key(
            Self::GROUP,
            "k8s-api-server-urls",
            SERVERS,
            "",
            "Several API servers of the cluster, tried in turn; wins over k8s-api-server",
        ),
        key(
            Self::GROUP,
            "k8s-heartbeat-timeout",
            Kind::Text(values::PATIENCE),
            "30s",
            "A connection to the API server that does not answer for so long is given up; 0 leaves that to the watches",
        ),
    ];

    /// The API server of the pod's environment, at a rate that nobody waits for.
    pub fn unlimited(user_agent: &str) -> Self {
        Self {
            kubeconfig: None,
            servers: Vec::new(),
            qps: 50_000,
            burst: 50_000,
            heartbeat: Duration::from_secs(30),
            user_agent: user_agent.to_owned(),
        }
    }

    /// Reads [`Self::KEYS`], and the rate from two keys of the program's own; all are part of the reader's table.
    pub fn read(
        reader: &mut Reader<'_>,
        qps_key: &'static str,
        burst_key: &'static str,
        user_agent: &str,
    ) -> Self {
        let kubeconfig = Some(PathBuf::from(reader.text("k8s-kubeconfig-path")));
        let single = reader.parse("k8s-api-server", servers).unwrap_or_default();
        let several = reader.parse("k8s-api-server-urls", servers).unwrap_or_default();
        Self {
            kubeconfig: kubeconfig.filter(|path| !path.as_os_str().is_empty()),
            servers: if several.is_empty() { single } else { several },
            qps: reader.parse(qps_key, qps).unwrap_or_default(),
            burst: reader.number(burst_key),
            heartbeat: reader.parse("k8s-heartbeat-timeout", heartbeat).unwrap_or_default(),
            user_agent: user_agent.to_owned(),
        }
    }
}

/// URLs of API servers, separated by commas or spaces; without a scheme it is https.
fn servers(value: &str) -> Result<Vec<String>, Invalid> {
    value.split([',', ' ']).map(str::trim).filter(|text| !text.is_empty()).map(server).collect()
}

fn server(text: &str) -> Result<String, Invalid> {
    let bad = || Invalid::new("", format!("{text:?} is no such URL: write e.g. https://192.0.2.1:6443"));
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).ok_or_else(bad)?;
    let authority = rest.split('/').next().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']' | '_');
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(bad)?;
            host
        }
        Some(_) | None => authority,
    };
    if host.is_empty() || !authority.chars().all(allowed) || rest.contains(['?', '#']) {
        return Err(bad());
    }
    Ok(url)
}

/// Requests a second. Cilium's is a floating-point number; less than one request a second is none.
fn qps(value: &str) -> Result<u32, Invalid> {
    const MOST: f64 = 100_000.0;
    let number = value.parse::<f64>().ok().filter(|number| (1.0..=MOST).contains(number));
    // Not more than u32::MAX, and no fraction.
    number.map(|number| number.round() as u32).ok_or_else(|| Invalid::new("", "write e.g. 10"))
}

/// A patience of connections; 0 is off, as in Cilium.
fn heartbeat(value: &str) -> Result<Duration, Invalid> {
    match parse_duration(value) {
        Ok(Duration::ZERO) => Ok(Duration::ZERO),
        Ok(_) | Err(_) => values::patience(value),
    }
}
