use portway_runtime::config::{Invalid, Reader};
use portway_runtime::kubernetes::ClientOptions;

/// How the API server is reached.
pub(super) fn read(reader: &mut Reader<'_>, in_pod: bool) -> ClientOptions {
    let user_agent = concat!("portway-operator/", env!("CARGO_PKG_VERSION"));
    let options =
        ClientOptions::read(reader, "operator-k8s-client-qps", "operator-k8s-client-burst", user_agent);
    if options.kubeconfig.is_none() && options.servers.is_empty() && !in_pod {
        reader.refuse(
            &["k8s-kubeconfig-path"],
            "a kubeconfig, where this is no pod",
            "set --k8s-kubeconfig-path=FILE, or --k8s-api-server=URL for a server that asks for no credentials",
        );
    }
    options
}

/// A DNS label (RFC 1123).
pub(super) fn namespace(value: &str) -> Result<String, Invalid> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=63).contains(&value.len()) && value.bytes().all(allowed);
    let is_name = is_name && !value.starts_with('-') && !value.ends_with('-');
    if is_name { Ok(value.to_owned()) } else { Err(Invalid::new("", "write e.g. kube-system")) }
}
