//! What the runtime says in the environment.

use std::path::PathBuf;

use crate::failure::{Failure, code};
use crate::protocol::{AttachmentId, PodName};

/// `IFNAMSIZ` of include/uapi/linux/if.h, less the final zero.
const MAX_INTERFACE_NAME: usize = 15;

/// What the plugin is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

/// The environment of one call, through which `variable` looks.
pub struct Invocation<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Invocation<'a> {
    pub fn new(variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { variable }
    }

    /// # Errors
    /// `CNI_COMMAND` is missing or none that is known.
    pub fn command(&self) -> Result<Command, Failure> {
        match self.required("CNI_COMMAND")?.as_str() {
            "ADD" => Ok(Command::Add),
            "DEL" => Ok(Command::Del),
            "CHECK" => Ok(Command::Check),
            "STATUS" => Ok(Command::Status),
            "GC" => Ok(Command::Gc),
            "VERSION" => Ok(Command::Version),
            other => Err(invalid("CNI_COMMAND", other, "ADD, DEL, CHECK, STATUS, GC or VERSION")),
        }
    }

    /// # Errors
    /// `CNI_CONTAINERID` or `CNI_IFNAME` is missing or not as the specification wants it.
    pub fn attachment(&self) -> Result<AttachmentId, Failure> {
        let container = self.required("CNI_CONTAINERID")?;
        let fits = container.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        if !fits || !container.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            let allowed = "letters, digits, '_', '.' and '-', a letter or digit first";
            return Err(invalid("CNI_CONTAINERID", &container, allowed));
        }
        let interface = self.required("CNI_IFNAME")?;
        let fits = interface.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':');
        if !fits || interface.len() > MAX_INTERFACE_NAME || interface == "." || interface == ".." {
            return Err(invalid(
                "CNI_IFNAME",
                &interface,
                "at most 15 characters without '/', ':' and blanks",
            ));
        }
        Ok(AttachmentId { container, interface })
    }

    /// # Errors
    /// `CNI_NETNS` is missing.
    pub fn netns(&self) -> Result<PathBuf, Failure> {
        self.required("CNI_NETNS").map(PathBuf::from)
    }

    /// Of `CNI_ARGS` what a Kubernetes runtime adds; everything else is somebody else's.
    pub fn pod(&self) -> PodName {
        let arguments = (self.variable)("CNI_ARGS").unwrap_or_default();
        let mut pod = PodName::default();
        for (key, value) in arguments.split(';').filter_map(|argument| argument.split_once('=')) {
            match key {
                "K8S_POD_NAMESPACE" => value.clone_into(&mut pod.namespace),
                "K8S_POD_NAME" => value.clone_into(&mut pod.name),
                "K8S_POD_UID" => value.clone_into(&mut pod.uid),
                _ => {}
            }
        }
        pod
    }

    fn required(&self, name: &str) -> Result<String, Failure> {
        (self.variable)(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            let details =
                "container runtimes set it; to try the plugin by hand, set it as the CNI specification says";
            Failure::new(code::INVALID_ENVIRONMENT, format!("the variable {name} is missing"), details)
        })
    }
}

fn invalid(name: &str, value: &str, allowed: &str) -> Failure {
    Failure::new(code::INVALID_ENVIRONMENT, format!("{name}={value} is not {allowed}"), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(variables: &[(&str, &str)], ask: impl FnOnce(&Invocation<'_>) -> T) -> T {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        ask(&Invocation::new(&variable))
    }

    #[test]
    fn a_pod_is_named_by_the_arguments_of_the_runtime() {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=u;X";
        let pod = with(&[("CNI_ARGS", arguments)], |call| call.pod());
        assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("default", "web-0", "u"));
        assert_eq!(with(&[], |call| call.pod()), PodName::default());
    }

    #[test]
    fn names_that_could_be_paths_or_no_interfaces_are_refused() {
        let attachment =
            |id, ifname| with(&[("CNI_CONTAINERID", id), ("CNI_IFNAME", ifname)], |call| call.attachment());
        assert!(attachment("0a-b_c.d", "eth0").is_ok());
        for (id, ifname) in [
            ("../x", "eth0"),
            (".x", "eth0"),
            ("a/b", "eth0"),
            ("", "eth0"),
            ("a", ""),
            ("a", ".."),
            ("a", "e/0"),
            ("a", "e:0"),
            ("a", "a b"),
            ("a", "sixteencharacter"),
        ] {
            assert_eq!(attachment(id, ifname).unwrap_err().code, code::INVALID_ENVIRONMENT, "{id} {ifname}");
        }
    }
}
