use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::verdict;
use crate::command::{output, say};
use crate::workspace;

/// A file of the project: its path from the root, and its text.
struct File {
    path: PathBuf,
    text: String,
}

/// Judges every file that git tracks or would track.
pub(super) fn check() -> anyhow::Result<()> {
    let listed = output(Command::new("git").current_dir(workspace::root()).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let mut files = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()).collect::<BTreeSet<_>>() {
        // A file that is deleted but not committed yet is still listed; one that is no text has no rules.
        if let Some(text) = read_text(&workspace::root().join(path))? {
            files.push(File { path: path.into(), text });
        }
    }
    let mut violations = Vec::new();
    for file in &files {
        violations.extend(bad_names(&file.path));
        violations.extend(machine_paths(file));
        violations.extend(foreign_hosts(file));
        violations.extend(unsafe_code(file));
        violations.extend(too_long(file));
    }
    report_lengths(&files);
    verdict(&violations)
}

fn read_text(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Modules are named with the field's words; these say only that somebody had no word.
fn bad_names(path: &Path) -> Vec<String> {
    const BAD: [&str; 8] = ["common", "helper", "helpers", "manager", "misc", "util", "utils", "stuff"];
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let bad = is_rust(path) && BAD.iter().any(|bad| name == *bad || name.ends_with(&format!("_{bad}")));
    bad.then(|| format!("{}: name the module after its subject, not `{name}`", path.display()))
        .into_iter()
        .collect()
}

/// Folders that exist on one machine only.
fn machine_paths(file: &File) -> Vec<String> {
    // In two halves, or this very file would hold them.
    let places = [["/ho", "me/"], ["/ro", "ot/"], ["/wo", "rk/"], ["/tmp/", "pw"], ["/Use", "rs/"]]
        .map(|p| p.concat());
    lines_with(file, "a path of somebody's machine", |line| {
        places.iter().any(|place| {
            line.match_indices(place.as_str()).any(|(at, _)| {
                // The end of a longer path or URL is another matter.
                !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "._-}".contains(c))
            })
        })
    })
}

/// Hosts that the files of the project may name; every other URL is taken for a registry or a mirror.
const HOSTS: &[&str] = &[
    // The API server of tests/real-input, in a namespace of its own.
    "10.77.0.1",
    "127.0.0.1",
    "[::1]",
    "docs.cilium.io",
    "docs.kernel.org",
    "docs.rs",
    "doc.rust-lang.org",
    "elixir.bootlin.com",
    "example.com",
    "git.kernel.org",
    "github.com",
    "json-schema.org",
    "kubernetes.default.svc",
    "kubernetes.io",
    "localhost",
    "nexte.st",
    "www.apache.org",
    "www.cni.dev",
    "www.rfc-editor.org",
];

fn foreign_hosts(file: &File) -> Vec<String> {
    lines_with(file, "a host outside the list in xtask/src/check/files.rs", |line| {
        line.match_indices("://").any(|(at, mark)| {
            let scheme =
                line[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '+').next().unwrap_or("");
            let rest = &line[at + mark.len()..];
            let end = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || ".-[]:".contains(c)))
                .unwrap_or(rest.len());
            let authority = &rest[..end];
            let host = match authority.strip_prefix('[') {
                Some(v6) => v6.split(']').next().map_or_else(String::new, |v6| format!("[{v6}]")),
                None => authority.split(':').next().unwrap_or_default().to_owned(),
            };
            scheme.ends_with("http") | scheme.ends_with("https")
                && !host.is_empty()
                && !HOSTS.contains(&host.as_str())
                && !is_nobodys(&host)
        })
    })
}

/// Names and addresses that lead nowhere: those kept for documentation (RFC 2606, 5737, 3849), and names without a dot.
fn is_nobodys(host: &str) -> bool {
    let kept = [".example", ".invalid"].iter().any(|end| host.ends_with(end));
    kept || host.starts_with("192.0.2.") || host.starts_with("[2001:db8:") || !host.contains(['.', ':'])
}

/// Where unsafe code may be: at the edge to the kernel, and in tests that make namespaces.
const UNSAFE: &[&str] = &[
    "agent/src/",
    "agent/tests/",
    // A descriptor that comes over a socket is a number.
    "cni/src/protocol.rs",
    "common/datapath/src/user.rs",
    // An allocator that counts.
    "common/model/tests/pain_80_memory.rs",
    "common/runtime/src/",
    "ebpf/src/",
    "tests/",
];

fn unsafe_code(file: &File) -> Vec<String> {
    if !is_rust(&file.path) || UNSAFE.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let marks = ["{", "impl", "fn", "extern", "trait"].map(|word| format!("unsafe {word}"));
    lines_with(file, "unsafe code, which has no place in this crate", |line| {
        let code = line.split("//").next().unwrap_or_default();
        marks.iter().any(|mark| code.contains(mark.as_str()) && !code.contains('"'))
    })
}

fn lines_with(file: &File, what: &str, found: impl Fn(&str) -> bool) -> Vec<String> {
    file.text
        .lines()
        .enumerate()
        .filter(|(_, line)| found(line))
        .map(|(n, line)| format!("{}:{}: {what}: {}", file.path.display(), n + 1, line.trim()))
        .collect()
}

/// Lines after which a file deserves a look, and after which it has more than one subject for sure.
const LONG: usize = 400;
const TOO_LONG: usize = 600;

fn too_long(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    let too_long = is_rust(&file.path) && lines > TOO_LONG;
    too_long
        .then(|| format!("{}: {lines} lines; split it by subject ({TOO_LONG} at most)", file.path.display()))
        .into_iter()
        .collect()
}

fn report_lengths(files: &[File]) {
    let rust: Vec<_> = files
        .iter()
        .filter(|file| is_rust(&file.path))
        .map(|file| (file.text.lines().count(), &file.path))
        .collect();
    let lines: usize = rust.iter().map(|(lines, _)| lines).sum();
    say(format!("  {} Rust files, {lines} lines", rust.len()));
    for (lines, path) in rust.iter().filter(|(lines, _)| *lines > LONG) {
        say(format!("  {}: {lines} lines, more than the {LONG} to aim for", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn paths_of_a_machine_are_found_and_paths_that_end_alike_are_not() {
        let root = ["/ro", "ot/x"].concat();
        assert_eq!(machine_paths(&file("a.md", &format!("see {root}"))).len(), 1);
        assert_eq!(machine_paths(&file("a.md", &format!("see /sys/fs/cgroup{root}"))).len(), 0);
        assert_eq!(machine_paths(&file("a.md", "see /etc/portway")).len(), 0);
    }

    #[test]
    fn only_listed_hosts_may_be_named() {
        let url = |host: &str| format!("see {}://{host}/x", "https");
        assert_eq!(foreign_hosts(&file("a.md", &url("github.com"))).len(), 0);
        assert_eq!(foreign_hosts(&file("a.md", &url("127.0.0.1:80"))).len(), 0);
        assert_eq!(foreign_hosts(&file("a.md", &url("[::1]:80"))).len(), 0);
        assert_eq!(foreign_hosts(&file("a.md", &url("registry.corp.net"))).len(), 1);
        assert_eq!(
            foreign_hosts(&file(
                "a.lock",
                &format!("sparse+{}", url("mirror.corp.net").trim_start_matches("see "))
            ))
            .len(),
            1
        );
        for nobody in ["192.0.2.1:6443", "[2001:db8::1]:80", "none.invalid", "api.example/x", "a:80"] {
            assert_eq!(foreign_hosts(&file("a.rs", &url(nobody))).len(), 0, "{nobody}");
        }
        assert_eq!(foreign_hosts(&file("a.rs", "format!(\"http://{address}\")")).len(), 0);
        assert_eq!(foreign_hosts(&file("a.rs", "unix://run/portway.sock")).len(), 0);
    }

    #[test]
    fn unsafe_code_is_confined() {
        let block = format!("let x = {} {{ y }};", "unsafe");
        assert_eq!(unsafe_code(&file("common/model/src/lib.rs", &block)).len(), 1);
        assert_eq!(unsafe_code(&file("ebpf/src/main.rs", &block)).len(), 0);
        assert_eq!(unsafe_code(&file("common/model/src/lib.rs", "#![forbid(unsafe_code)]")).len(), 0);
    }

    #[test]
    fn modules_named_after_nothing_are_found() {
        assert_eq!(bad_names(Path::new("agent/src/utils.rs")).len(), 1);
        assert_eq!(bad_names(Path::new("agent/src/map_manager.rs")).len(), 1);
        assert_eq!(bad_names(Path::new("agent/src/frontend.rs")).len(), 0);
    }

    #[test]
    fn a_file_of_601_lines_is_too_long() {
        assert_eq!(too_long(&file("a.rs", &"x\n".repeat(601))).len(), 1);
        assert_eq!(too_long(&file("a.rs", &"x\n".repeat(600))).len(), 0);
    }
}
