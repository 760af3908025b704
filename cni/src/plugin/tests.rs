use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;
use crate::protocol::{receive, send};
use crate::result::{Attached, Ip};

/// A runtime with the socket of an agent that may not be there.
struct Runtime {
    dir: tempfile::TempDir,
    variables: BTreeMap<&'static str, String>,
}

impl Runtime {
    fn new(command: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let netns = dir.path().join("netns");
        std::fs::write(&netns, "").unwrap();
        let variables = BTreeMap::from([
            ("CNI_COMMAND", command.to_owned()),
            ("CNI_CONTAINERID", "c1".to_owned()),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_NETNS", netns.display().to_string()),
        ]);
        Self { dir, variables }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("cni.sock")
    }

    fn run(&self, version: &str) -> Outcome {
        let input = json!({ "cniVersion": version, "name": "n", "type": "portway-cni", "socket-path": self.socket() });
        self.run_with(&input)
    }

    fn run_with(&self, input: &Value) -> Outcome {
        let variable = |name: &str| self.variables.get(name).cloned();
        run(&Invocation::new(&variable), input.to_string().as_bytes())
    }

    /// An agent that answers once; joined, it gives the question.
    fn agent(&self, response: Response) -> std::thread::JoinHandle<Request> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (request, _) = receive(&mut stream).unwrap();
            send(&mut stream, &response, None).unwrap();
            request
        })
    }
}

fn code_of(outcome: &Outcome) -> u64 {
    assert!(outcome.failed, "{outcome:?}");
    outcome.output.as_ref().unwrap()["code"].as_u64().unwrap()
}

#[test]
fn an_added_pod_is_told_in_the_version_that_was_asked() {
    let runtime = Runtime::new("ADD");
    let ips = vec![Ip { address: "10.244.1.5/32".to_owned(), gateway: None, interface: None }];
    let agent = runtime.agent(Response::Attached(Attached { ips, ..Attached::default() }));
    let output = runtime.run("0.4.0").output.unwrap();
    assert_eq!((&output["cniVersion"], &output["ips"][0]["version"]), (&json!("0.4.0"), &json!("4")));
    assert!(
        matches!(agent.join().unwrap(), Request::Add(add) if add.id.container == "c1" && add.network == "n")
    );
}

#[test]
fn what_the_agent_refuses_goes_to_the_runtime_as_it_is() {
    let runtime = Runtime::new("ADD");
    let _agent = runtime.agent(Response::Failed(Failure::new(code::NO_ADDRESS, "full", "enlarge it")));
    let outcome = runtime.run("1.0.0");
    assert!(outcome.failed);
    let expected = json!({ "cniVersion": "1.0.0", "code": 100, "msg": "full", "details": "enlarge it" });
    assert_eq!(outcome.output.unwrap(), expected);
}

#[test]
fn del_without_an_agent_succeeds_and_leaves_a_note() {
    let runtime = Runtime::new("DEL");
    assert_eq!(runtime.run("1.1.0"), Outcome { output: None, failed: false });
    let directory = deletions::directory(&runtime.socket());
    let notes = deletions::notes(&directory).unwrap();
    assert_eq!(
        *notes[0].1.as_ref().unwrap(),
        AttachmentId { container: "c1".to_owned(), interface: "eth0".to_owned() }
    );
    // With one it is the agent's matter.
    let agent = runtime.agent(Response::Done);
    assert!(!runtime.run("1.1.0").failed);
    assert!(matches!(agent.join().unwrap(), Request::Del { .. }));
}

#[test]
fn del_needs_no_namespace() {
    let mut runtime = Runtime::new("DEL");
    runtime.variables.remove("CNI_NETNS");
    assert!(!runtime.run("0.3.1").failed);
}

#[test]
fn del_that_can_leave_no_note_is_to_be_tried_again() {
    let runtime = Runtime::new("DEL");
    std::fs::write(deletions::directory(&runtime.socket()), "no directory").unwrap();
    assert_eq!(code_of(&runtime.run("1.1.0")), u64::from(code::TRY_AGAIN));
}

#[test]
fn status_without_an_agent_is_not_available() {
    let runtime = Runtime::new("STATUS");
    let outcome = runtime.run("1.1.0");
    assert_eq!(code_of(&outcome), u64::from(code::NOT_AVAILABLE));
    let details = outcome.output.unwrap()["details"].as_str().unwrap().to_owned();
    assert!(details.contains("start portway-agent"), "{details}");
}

#[test]
fn commands_that_a_version_does_not_have_are_refused() {
    for (command, version) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0"), ("ADD", "0.2.0")] {
        let outcome = Runtime::new(command).run(version);
        assert_eq!(code_of(&outcome), u64::from(code::INCOMPATIBLE_VERSION), "{command}");
        assert_eq!(outcome.output.unwrap()["cniVersion"], version);
    }
}

#[test]
fn gc_hands_over_what_is_valid_and_refuses_to_guess() {
    let runtime = Runtime::new("GC");
    assert_eq!(code_of(&runtime.run("1.1.0")), u64::from(code::INVALID_CONFIG));
    let agent = runtime.agent(Response::Done);
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    let outcome = runtime.run_with(&json!({
        "cniVersion": "1.1.0", "name": "n", "socket-path": runtime.socket(), "cni.dev/valid-attachments": valid,
    }));
    assert!(!outcome.failed, "{outcome:?}");
    assert!(matches!(agent.join().unwrap(), Request::Gc { valid, .. } if valid.len() == 1));
}

#[test]
fn version_lists_what_is_spoken_whatever_was_asked() {
    let output = Runtime::new("VERSION").run("0.1.0").output.unwrap();
    assert_eq!(output["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
}

#[test]
fn input_that_is_no_json_and_a_missing_namespace_are_told_apart() {
    let mut runtime = Runtime::new("ADD");
    let variable = |name: &str| runtime.variables.get(name).cloned();
    assert_eq!(code_of(&run(&Invocation::new(&variable), b"{")), u64::from(code::DECODING));
    runtime.variables.insert("CNI_NETNS", "/proc/nobody/ns/net".to_owned());
    assert_eq!(code_of(&runtime.run("1.1.0")), u64::from(code::INVALID_ENVIRONMENT));
}

#[test]
fn a_network_without_a_name_is_refused_except_to_end_a_pod() {
    for name in [json!({}), json!({ "name": "" })] {
        for (command, is_refused) in [("ADD", true), ("CHECK", true), ("GC", true), ("DEL", false)] {
            let runtime = Runtime::new(command);
            let mut input = name.clone();
            input["cniVersion"] = "1.1.0".into();
            input["socket-path"] = runtime.socket().to_str().into();
            input["cni.dev/valid-attachments"] = json!([]);
            let outcome = runtime.run_with(&input);
            assert_eq!(outcome.failed, is_refused, "{command}: {outcome:?}");
            if is_refused {
                assert_eq!(code_of(&outcome), u64::from(code::INVALID_CONFIG));
                let msg = outcome.output.unwrap()["msg"].as_str().unwrap().to_owned();
                assert!(msg.contains("has no name"), "{msg}");
            }
        }
    }
}

#[test]
fn what_the_plugin_before_has_said_is_passed_on_as_it_came() {
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "sandbox": "/n", "socketPath": "/vhost", "pciID": "0000:00:1f.6" }],
        "ips": [{ "address": "10.0.0.2/24", "interface": 0 }],
        "routes": [{ "dst": "0.0.0.0/0", "table": 100, "priority": 7 }],
        "dns": { "nameservers": ["10.0.0.1"] },
    });
    let answers = [serde_json::from_value(previous.clone()).unwrap(), Attached::default()];
    for (answer, is_passed_on) in answers.into_iter().zip([true, false]) {
        let runtime = Runtime::new("ADD");
        let agent = runtime.agent(Response::Attached(answer));
        let input = json!({
            "cniVersion": "1.1.0", "name": "n", "socket-path": runtime.socket(), "prevResult": previous,
        });
        let output = runtime.run_with(&input).output.unwrap();
        assert_eq!(output == previous, is_passed_on, "{output}");
        agent.join().unwrap();
    }
}
