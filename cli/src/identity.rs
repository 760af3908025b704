//! `portway identity`: which number stands for which labels.

use portway_agent::api::{Identity, path};
use portway_model::identity::cardinality::{Cardinality, Key};

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

/// Labels and namespaces that are shown, those that matter most.
const KEYS: usize = 20;

pub(crate) fn list(agent: &Agent, by_label: &[String], format: Format) -> Result<(), Failure> {
    let mut path = path::IDENTITIES.to_owned();
    let (labels, of_keys) = by_label.iter().partition::<Vec<_>, _>(|label| !label.is_empty());
    if !labels.is_empty() {
        let labels: Vec<_> = labels.into_iter().map(|label| escaped(label)).collect();
        path.push_str(&format!("?labels={}", labels.join("%2C")));
    }
    let identities: Vec<Identity> = agent.get(&path)?;
    if !of_keys.is_empty() {
        let cardinality = cardinality(&identities);
        return match format {
            Format::Json => Ok(print_json(&cardinality)?),
            Format::Text => Ok(print(&cardinality_text(&cardinality, &identities))?),
        };
    }
    match format {
        Format::Json => Ok(print_json(&identities)?),
        Format::Text => Ok(print(&list_text(&identities))?),
    }
}

pub(crate) fn get(agent: &Agent, id: u32, format: Format) -> Result<(), Failure> {
    let identity: Identity = agent.get(&format!("{}/{id}", path::IDENTITIES))?;
    match format {
        Format::Json => Ok(print_json(&identity)?),
        Format::Text => Ok(print(&get_text(&identity))?),
    }
}

/// As a part of a query (RFC 3986).
fn escaped(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// One line an identity, and one more for each label after the first.
fn list_text(identities: &[Identity]) -> String {
    let mut table = Table::new(&["ID", "SCOPE", "ENDPOINTS", "LABELS"]);
    for Identity { id, labels, scope, endpoints, is_marked } in identities {
        let mark = if *is_marked { " (unused)" } else { "" };
        let first = labels.first().map_or("", String::as_str);
        table.row([id.to_string(), format!("{scope}{mark}"), endpoints.to_string(), first.to_owned()]);
        for label in labels.iter().skip(1) {
            table.row(["", "", "", label]);
        }
    }
    table.to_string()
}

/// Of the cluster's identities.
fn cardinality(identities: &[Identity]) -> Cardinality {
    let sets: Vec<_> = of_cluster(identities).map(Identity::labels).collect();
    Cardinality::of(sets.iter(), KEYS)
}

fn of_cluster(identities: &[Identity]) -> impl Iterator<Item = &Identity> {
    identities.iter().filter(|identity| identity.scope == "cluster")
}

/// The labels that make them many, and then the namespaces that have most of them.
fn cardinality_text(cardinality: &Cardinality, identities: &[Identity]) -> String {
    let count = of_cluster(identities).count();
    let mut keys = Table::new(&["LABEL", "VALUES", "IDENTITIES", "WITHOUT IT"]);
    for Key { label, values, identities, without } in &cardinality.keys {
        keys.row([label.clone(), values.to_string(), identities.to_string(), without.to_string()]);
    }
    let mut namespaces = Table::new(&["NAMESPACE", "IDENTITIES", "SHARE"]);
    for (namespace, of_it) in cardinality.namespaces.iter().take(KEYS) {
        let share = format!("{} %", of_it * 100 / count.max(1));
        namespaces.row([namespace.to_string(), of_it.to_string(), share]);
    }
    format!("{count} identities of the cluster\n\n{keys}\n{namespaces}")
}

fn get_text(identity: &Identity) -> String {
    let Identity { id, labels, scope, endpoints, is_marked } = identity;
    let mut table = Table::plain();
    let marked = if *is_marked { "yes: it goes unless somebody uses it" } else { "no" };
    for (name, value) in [
        ("Identity", id.to_string()),
        ("Scope", scope.clone()),
        ("Pods of this node", endpoints.to_string()),
        ("Marked as unused", marked.to_owned()),
    ] {
        table.row([format!("{name}:"), value]);
    }
    for (n, label) in labels.iter().enumerate() {
        table.row([if n == 0 { "Labels:" } else { "" }, label]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities() -> Vec<Identity> {
        let identity = |id, labels: &[&str], scope: &str, endpoints, is_marked| Identity {
            id,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            scope: scope.to_owned(),
            endpoints,
            is_marked,
        };
        vec![
            identity(1, &["reserved:host"], "reserved", 0, false),
            identity(4711, &["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"], "cluster", 2, false),
            identity(4712, &["k8s:app=db"], "cluster", 0, true),
        ]
    }

    #[test]
    fn an_identity_has_a_line_for_each_of_its_labels() {
        assert_eq!(
            list_text(&identities()),
            "ID     SCOPE              ENDPOINTS   LABELS\n\
             1      reserved           0           reserved:host\n\
             4711   cluster            2           k8s:app=web\n                                      k8s:io.kubernetes.pod.namespace=shop\n\
             4712   cluster (unused)   0           k8s:app=db\n"
        );
        assert!(get_text(&identities()[1]).ends_with(
            "Labels:              k8s:app=web\n                     k8s:io.kubernetes.pod.namespace=shop\n"
        ));
    }

    #[test]
    fn the_labels_that_make_identities_many_come_first_and_then_whose_they_are() {
        let identities = identities();
        assert_eq!(
            cardinality_text(&cardinality(&identities), &identities),
            "2 identities of the cluster\n\n\
             LABEL                             VALUES   IDENTITIES   WITHOUT IT\n\
             k8s:app                           2        2            2\n\
             k8s:io.kubernetes.pod.namespace   1        1            2\n\n\
             NAMESPACE   IDENTITIES   SHARE\n\
             shop        1            50 %\n"
        );
    }

    #[test]
    fn a_label_is_escaped_in_a_query() {
        assert_eq!(escaped("k8s:app=a&b é"), "k8s%3Aapp%3Da%26b%20%C3%A9");
    }
}
