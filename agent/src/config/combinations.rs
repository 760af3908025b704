//! Values that only make sense, or make none, together with others.

use portway_runtime::config::{Origin, Reader};

pub(super) fn check(reader: &mut Reader<'_>) {
    policy(reader);
    identities(reader);
    partial_replacement(reader);
}

/// Without enforcement a default of denying everything would silently be one of allowing everything.
fn policy(reader: &mut Reader<'_>) {
    if reader.text("enable-policy") == "always" {
        reader.refuse(
            &["enable-policy"],
            "default or never: policies are not enforced yet",
            "set it to default and keep what enforces policies, or to never",
        );
    }
}

fn identities(reader: &mut Reader<'_>) {
    let mode = reader.text("identity-allocation-mode");
    match mode.as_str() {
        "crd" => {}
        "kvstore" | "doublewrite-readcrd" | "doublewrite-readkvstore" => {
            reader.warn(
                "identity-allocation-mode",
                format!("{mode} needs a key-value store, which Portway does not use; it is taken for crd"),
            );
        }
        _ => {
            reader.parse::<()>("identity-allocation-mode", |_| {
                Err(super::parse::mend("use crd (the default)"))
            });
        }
    }
}

/// Cilium can serve some sorts of services beside kube-proxy.
fn partial_replacement(reader: &mut Reader<'_>) {
    let replaces = super::parse::replacement(&reader.text("kube-proxy-replacement")).unwrap_or(true);
    if replaces {
        return;
    }
    for name in ["enable-node-port", "bpf-lb-sock"] {
        let is_set = reader.said(name).is_some_and(|said| said.origin != Origin::Default);
        if is_set && super::parse::is_on(&reader.text(name)) {
            reader.warn(
                name,
                "kube-proxy-replacement=false leaves every service to kube-proxy, so it has no effect",
            );
        }
    }
}
