//! An event that a watch never told is found by the audit, named, and mended on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use portway_tests::harness::agent::cli;
use portway_tests::harness::fault::{EventFault, FaultProxy};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::endpoints;
use portway_tests::harness::{World, eventually};

/// The exit code and what was printed.
fn audit(world: &World, args: &[&str]) -> Result<(Option<i32>, String)> {
    let output = cli(&world.places(), &[&["audit"], args].concat())?.output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn one_skipped_event_is_found_by_portway_audit_and_mended_with_fix() -> Result<()> {
    World::cluster("skipped", |world, control_plane| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        control_plane.publish(&web(), endpoints(&[&a]))?;
        let proxy = FaultProxy::start(control_plane)?;
        world.follow(proxy.kubeconfig());
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a"])?;
        let (code, text) = audit(world, &[])?;
        ensure!(code == Some(0) && text.starts_with("no difference"), "{code:?}: {text}");

        let skipped = Arc::new(AtomicBool::new(false));
        let skip = Arc::clone(&skipped);
        proxy.on_events(move |asked, event| {
            if asked.path.ends_with("/endpointslices") && event.kind == "MODIFIED" {
                skip.store(true, Ordering::Relaxed);
                EventFault::Skip
            } else {
                EventFault::None
            }
        });
        control_plane.publish(&web(), endpoints(&[&b]))?;
        eventually(std::time::Duration::from_secs(5), "an event to be skipped", || {
            ensure!(skipped.load(Ordering::Relaxed), "none came");
            Ok(())
        })?;
        client.wait_servers(WEB[0], &["a"])?;

        let (code, text) = audit(world, &[])?;
        ensure!(
            code == Some(1) && text.contains("EndpointSlice") && text.contains("default/web"),
            "{code:?}: {text}"
        );
        // It changes nothing.
        client.wait_servers(WEB[0], &["a"])?;
        let (code, text) = audit(world, &["--fix"])?;
        ensure!(code == Some(0) && text.starts_with("Put right:"), "{code:?}: {text}");
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        let status = world.portway(&["status", "-o", "json"])?;
        ensure!(status.contains("\"EndpointSlice\": "), "it is not counted: {status}");
        Ok(())
    })
}

#[test]
fn an_api_server_that_is_down_is_said_and_no_difference() -> Result<()> {
    World::cluster("down", |world, control_plane| {
        let a = world.serving_pod("a")?;
        control_plane.publish(&web(), endpoints(&[&a]))?;
        world.start_agent_on_cluster(control_plane, &[])?;
        control_plane.stop_api_server()?;
        let (code, text) = audit(world, &["--fix"])?;
        ensure!(code == Some(0) && text.contains("Not compared:"), "{code:?}: {text}");
        world.node_client()?.wait_servers(WEB[0], &["a"])
    })
}
