//! The chart on a real API server: every object of every set of values, and helm itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use portway_tests::harness::cluster::crds::definitions;
use portway_tests::harness::cluster::{api::has_code, binary};
use portway_tests::harness::{ControlPlane, Namespace, chart};
use serde_json::json;

/// A second release would be of no use, so objects have names of their own.
const RELEASE: &str = "portway";

#[test]
fn the_api_server_takes_every_object_of_every_set_and_the_definitions() -> Result<()> {
    let namespace = Namespace::new("chart")?;
    let control_plane = ControlPlane::start(&namespace)?;
    let client = control_plane.client();
    for set in chart::sets()? {
        for object in chart::objects(&set)? {
            client.dry_run(&object).map_err(|error| error.context(format!("{set}: {object}")))?;
        }
    }
    for definition in definitions()? {
        client.dry_run(&definition)?;
    }
    // It would have refused something.
    let mut wrong = chart::object("default", "DaemonSet", "portway-agent")?.unwrap_or_default();
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = json!([]);
    let error = client.dry_run(&wrong).unwrap_err();
    ensure!(format!("{error:#}").contains("volumeMount"), "{error:#}");
    ensure!(has_code(
        &client.get("/apis/apps/v1/namespaces/kube-system/daemonsets/portway-agent").unwrap_err(),
        404
    ));
    Ok(())
}

#[test]
fn helm_installs_the_chart_changes_it_to_every_set_and_takes_all_of_it_away() -> Result<()> {
    let namespace = Namespace::new("helm")?;
    let control_plane = ControlPlane::start(&namespace)?;
    let client = control_plane.client();
    // The harness' own, of the same names.
    for rule in chart::rules("default")? {
        client.delete(&rule)?;
    }
    let home = tempfile::tempdir()?;
    let helm = |verb: &[&str]| {
        let mut helm = namespace.command(binary("helm")?);
        helm.args(verb).args(["--namespace", "kube-system", "--kubeconfig"]);
        helm.arg(control_plane.kubeconfig_of("admin")?).env("HOME", home.path());
        run(&mut helm)
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("deploy").join("portway");
    let path = path.display().to_string();
    for set in chart::sets()? {
        let values = format!("{}/chart/{set}.values.yaml", env!("CARGO_MANIFEST_DIR"));
        helm(&["upgrade", RELEASE, &path, "--install", "--reset-values", "--values", &values])?;
        for object in chart::objects(&set)? {
            let there = client.dry_run(&object)?;
            ensure!(
                there["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE,
                "{set}: {there}"
            );
        }
    }
    let notes = helm(&["get", "notes", RELEASE])?;
    ensure!(notes.contains("kubectl -n kube-system exec daemonset/portway-agent"), "{notes}");
    helm(&["uninstall", RELEASE])?;
    for set in chart::sets()? {
        for object in chart::objects(&set)? {
            let gone = client.delete(&object);
            ensure!(gone.is_err_and(|error| has_code(&error, 404)), "{set}: {object} is left");
        }
    }
    Ok(())
}

#[test]
fn values_that_make_no_sense_are_refused_before_anything_is_applied() -> Result<()> {
    for (wrong, said) in [
        ("replicas=3", "additional properties 'replicas' not allowed"),
        ("operator.replicas=0", "operator/replicas"),
        ("k8sServicePort=70000", "k8sServicePort"),
        ("routingMode=native", "ipv4NativeRoutingCIDR"),
        (
            "routingMode=native,ipv4NativeRoutingCIDR=10.0.0.0/8,ipv6.enabled=true,ipam.mode=kubernetes",
            "ipv6NativeRoutingCIDR",
        ),
        ("ipv6.enabled=true", "clusterPoolIPv6PodCIDRList"),
        ("operator.enabled=false", "ipam.mode=kubernetes"),
        (
            "operator.enabled=false,ipam.mode=kubernetes,identityManagementMode=both",
            "identityManagementMode=agent",
        ),
        (
            "operator.enabled=false,ipam.mode=kubernetes,ciliumEndpointSlice.enabled=true",
            "ciliumEndpointSlice",
        ),
        ("ipam.operator.clusterPoolIPv4PodCIDRList=null", "clusterPoolIPv4PodCIDRList"),
        ("ipv4.enabled=false", "ipv4.enabled"),
        ("cluster.id=3", "cluster.name"),
        ("extraConfig.ipam=kubernetes", "set ipam.mode instead"),
        ("extraConfig.operator-api-serve-addr=:9999", "probes"),
    ] {
        let mut helm = Command::new(binary("helm")?);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("deploy").join("portway");
        helm.args(["template", RELEASE]).arg(path).args(["--kube-version", "1.37.2", "--set", wrong]);
        let error = run(&mut helm).err();
        let error = error.map_or_else(String::new, |error| format!("{error:#}"));
        assert!(error.contains(said), "{wrong}: {error:?}");
    }
    Ok(())
}

/// What it printed.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {} {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
