use super::*;

fn object(labels: &[(&str, &str)]) -> Vec<(Arc<str>, Arc<str>)> {
    labels.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
}

#[test]
fn a_pods_labels_are_its_own_its_namespaces_its_account_and_the_cluster() {
    let pod = object(&[("app", "web"), ("pod-template-hash", "5d4f8c7b9")]);
    let namespace = object(&[("kubernetes.io/metadata.name", "shop"), ("team", "a")]);
    let labels = security_labels(&LabelFilter::default(), &pod, "shop", &namespace, "front", "default");
    assert_eq!(
        labels.to_string(),
        "k8s:app=web,k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop,\
         k8s:io.cilium.k8s.namespace.labels.team=a,k8s:io.cilium.k8s.policy.cluster=default,\
         k8s:io.cilium.k8s.policy.serviceaccount=front,k8s:io.kubernetes.pod.namespace=shop"
    );
    assert_eq!(labels.namespace().map(|name| &**name), Some("shop"));
}

#[test]
fn a_pod_is_not_heard_when_it_says_what_agents_say() {
    let pod = object(&[
        ("io.cilium.k8s.namespace.labels.team", "root"),
        ("io.cilium.k8s.policy.cluster", "other"),
        ("io.cilium.k8s.policy.serviceaccount", "admin"),
        ("io.kubernetes.pod.namespace", "kube-system"),
    ]);
    let labels = security_labels(&LabelFilter::default(), &pod, "shop", &[], "", "default");
    assert_eq!(
        labels.to_string(),
        "k8s:io.cilium.k8s.policy.cluster=default,k8s:io.kubernetes.pod.namespace=shop"
    );
}

#[test]
fn labels_are_sorted_and_the_last_of_a_key_counts() {
    let label = |source: &str, key: &str, value: &str| Label::new(source, key, value);
    let labels = Labels::new([
        label("k8s", "b", "1"),
        label("k8s", "a", "2"),
        label("k8s", "b", "3"),
        label("any", "b", "4"),
    ]);
    assert_eq!(labels.to_string(), "any:b=4,k8s:a=2,k8s:b=3");
    assert_eq!((labels.get("k8s", "b").map(|v| &**v), labels.get("k8s", "c")), (Some("3"), None));
    let other_way = Labels::new([label("any", "b", "4"), label("k8s", "b", "3"), label("k8s", "a", "2")]);
    assert_eq!(labels, other_way);
}

#[test]
fn a_label_is_read_as_it_is_written() {
    for (text, source, key, value) in [
        ("k8s:app=web", "k8s", "app", "web"),
        ("k8s:io.kubernetes.pod.namespace=a=b", "k8s", "io.kubernetes.pod.namespace", "a=b"),
        ("reserved:host", "reserved", "host", ""),
        ("app", "unspec", "app", ""),
        ("cidr:fd00--/8", "cidr", "fd00--/8", ""),
    ] {
        assert_eq!(Label::parse(text), Some(Label::new(source, key, value)), "{text}");
    }
    assert_eq!((Label::parse(""), Label::parse("k8s:"), Label::parse("=x")), (None, None, None));
    assert_eq!(Label::from_entry("k8s:app", "web").to_string(), "k8s:app=web");
}

#[test]
fn labels_answer_to_their_source_or_to_any() {
    let labels = Labels::new([Label::new("k8s", "app", "web"), Label::new("k8s", "tier", "")]);
    let asked = |texts: &[&str]| {
        labels.answer(&texts.iter().filter_map(|text| Label::parse(text)).collect::<Vec<_>>())
    };
    assert!(asked(&["k8s:app=web"]) && asked(&["any:app=web", "tier"]) && asked(&["app=web"]));
    assert!(!asked(&["container:app=web"]) && !asked(&["k8s:app=web", "k8s:x"]) && !asked(&["app"]));
}

#[test]
fn reserved_numbers_have_labels() {
    let text = |identity| Labels::of_reserved(identity).map(|labels| labels.to_string());
    assert_eq!(text(NumericIdentity::HOST).as_deref(), Some("reserved:host"));
    assert_eq!(
        text(NumericIdentity::KUBE_APISERVER).as_deref(),
        Some("reserved:kube-apiserver,reserved:remote-node")
    );
    assert_eq!(text(NumericIdentity::new(256)), None);
}
