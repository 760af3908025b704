//! Are the tests of the model worth anything? Changes one line of the model at a time, in a copy, and runs the
//! comparison with the oracle on each: every mutant must fail it, and the copy as it is must pass.
//!
//! `portway-mutants [--long] [--only NAME]`: the short form takes every fifth mutant. The mutants are files in
//! `tests/mutants`; [`Mutant::parse`] says how they are written. A mutant whose text is not in the source exactly
//! once is an error: it has to move along with the code.

#![expect(clippy::print_stdout, reason = "a table for people is what this program is for")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// What the copy needs: the two crates under test and, as a crate of its own, the comparison.
const COPIED: [&str; 8] = [
    "Cargo.lock",
    "clippy.toml",
    "common/datapath",
    "common/model",
    "tests/src/oracle.rs",
    "tests/src/oracle",
    "tests/src/comparison.rs",
    "tests/src/comparison",
];

/// The suites that must catch them, one after the other. Most fall to the first, which is fast.
const SUITES: [&str; 3] = ["oracle_worlds", "oracle_mutations", "oracle_api"];

/// A mutant that makes the model loop is caught by this.
const PATIENCE: Duration = Duration::from_secs(300);

/// A change of one place.
struct Mutant {
    name: String,
    file: String,
    from: String,
    to: String,
}

impl Mutant {
    /// A file of `file: PATH`, a line `--- from`, the text to be replaced, a line `--- to`, and its replacement.
    fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let (head, rest) = text.split_once("--- from\n").context("no line `--- from`")?;
        let (from, to) = rest.split_once("--- to\n").context("no line `--- to`")?;
        let file =
            head.lines().find_map(|line| line.strip_prefix("file: ")).context("no line `file: PATH`")?;
        let trimmed = |text: &str| text.trim_end_matches('\n').to_owned();
        Ok(Self { name: name.to_owned(), file: file.to_owned(), from: trimmed(from), to: trimmed(to) })
    }

    fn apply(&self, source: &str) -> anyhow::Result<String> {
        let found = source.matches(&self.from).count();
        ensure!(found == 1, "{} has the text of mutant {} {found} times, not once", self.file, self.name);
        Ok(source.replacen(&self.from, &self.to, 1))
    }
}

enum Fate {
    Caught(String),
    Survived,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let long = arguments.iter().any(|a| a == "--long");
    let only = arguments.iter().position(|a| a == "--only").and_then(|at| arguments.get(at + 1));
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests crate has no parent folder")?;

    let all = mutants(&root.join("tests/mutants"))?;
    let chosen: Vec<&Mutant> = match only {
        Some(name) => all.iter().filter(|mutant| mutant.name.contains(name.as_str())).collect(),
        None => all.iter().step_by(if long { 1 } else { 5 }).collect(),
    };
    ensure!(!chosen.is_empty(), "no mutant is called like that; see tests/mutants");
    let copy = root.join("target/mutants/workspace");
    prepare(root, &copy)?;

    let begun = Instant::now();
    match run(&copy)? {
        Fate::Survived => println!("the model as it is passes ({:.0?})", begun.elapsed()),
        Fate::Caught(how) => {
            bail!("the model as it is fails the comparison, so no mutant means anything:\n{how}")
        }
    }
    let mut failed = Vec::new();
    for mutant in &chosen {
        let begun = Instant::now();
        let (word, how) = match judge(mutant, &copy) {
            Ok(Fate::Caught(how)) => ("caught", how),
            Ok(Fate::Survived) => ("SURVIVED", String::new()),
            Err(error) => ("BROKEN", format!("{error:#}")),
        };
        println!("{word:<9} {:<42} {:>6.1?}  {how}", mutant.name, begun.elapsed());
        if word != "caught" {
            failed.push(mutant.name.as_str());
        }
    }
    println!("{} of {} mutants caught", chosen.len() - failed.len(), chosen.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Leaves the copy as it was.
fn judge(mutant: &Mutant, copy: &Path) -> anyhow::Result<Fate> {
    let path = copy.join(&mutant.file);
    let source = fs::read_to_string(&path).with_context(|| format!("reading {}", mutant.file))?;
    fs::write(&path, mutant.apply(&source)?)?;
    let fate = run(copy);
    fs::write(&path, source)?;
    fate
}

/// In order of their names.
fn mutants(folder: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "mutant"));
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name =
                path.file_stem().and_then(|stem| stem.to_str()).context("a file name that is not UTF-8")?;
            Mutant::parse(name, &fs::read_to_string(path)?).with_context(|| format!("mutant {name}"))
        })
        .collect()
}

/// A workspace of its own with its own target folder beside it, which is kept: only the model is built anew.
fn prepare(root: &Path, copy: &Path) -> anyhow::Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy).context("removing the last copy")?;
    }
    for path in COPIED {
        copy_tree(&root.join(path), &copy.join(path)).with_context(|| format!("copying {path}"))?;
    }
    for suite in SUITES {
        let path = format!("tests/tests/{suite}.rs");
        copy_tree(&root.join(&path), &copy.join(&path)).with_context(|| format!("copying {path}"))?;
    }
    fs::write(copy.join("tests/src/lib.rs"), "pub mod comparison;\npub mod oracle;\n")?;
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    fs::write(copy.join("Cargo.toml"), workspace_manifest(&manifest)?)?;
    fs::write(copy.join("tests/Cargo.toml"), TESTS_MANIFEST)?;
    Ok(())
}

const TESTS_MANIFEST: &str = "[package]
name = \"portway-tests\"
version = \"0.1.0\"
edition.workspace = true
rust-version.workspace = true

[dependencies]
k8s-openapi.workspace = true
portway-datapath.workspace = true
portway-model.workspace = true
serde_json.workspace = true
";

/// The workspace's own, with the members that the copy has and a profile that builds fast and runs fast enough.
fn workspace_manifest(manifest: &str) -> anyhow::Result<String> {
    let mut kept = String::new();
    for line in manifest.lines() {
        if line.starts_with("[profile.") {
            break;
        }
        if line.starts_with("members") {
            kept.push_str("members = [\"common/datapath\", \"common/model\", \"tests\"]\n");
        } else if !line.starts_with("default-members") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    ensure!(kept.contains("members = [\"common"), "the workspace's Cargo.toml has no line `members`");
    Ok(kept + PROFILE)
}

/// What the suites spend their time in is optimised, what takes long to build is not.
const PROFILE: &str = "
[profile.dev]
opt-level = 1
debug = false

[profile.dev.package.k8s-openapi]
opt-level = 0
";

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    if !from.is_dir() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_tree(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Builds, which must succeed, and runs the suites until one fails. Caught says by what.
fn run(copy: &Path) -> anyhow::Result<Fate> {
    for (name, executable) in build(copy)? {
        if let Some(how) = fails(&executable, copy)? {
            return Ok(Fate::Caught(format!("{name}: {how}")));
        }
    }
    Ok(Fate::Survived)
}

/// What the suite said when it failed; `None` if it passed.
fn fails(suite: &Path, copy: &Path) -> anyhow::Result<Option<String>> {
    let errors = copy.with_file_name("last-run");
    let mut child = Command::new(suite)
        .env_remove("PORTWAY_LONG")
        .env_remove("PORTWAY_SEED")
        .env("RUST_BACKTRACE", "0")
        .arg("--nocapture")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&errors)?)
        .spawn()
        .context("starting the suite")?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!("it did not end within {PATIENCE:?}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.success() {
        return Ok(None);
    }
    let text = fs::read_to_string(&errors)?;
    let how = text.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or("it failed");
    Ok(Some(how.chars().take(80).collect()))
}

/// The suites' executables, in their order.
fn build(copy: &Path) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.with_file_name("target"))
        .args(["test", "--no-run", "--offline", "--quiet", "--message-format=json-render-diagnostics"])
        .args(["--package", "portway-tests"]);
    for suite in SUITES {
        cargo.args(["--test", suite]);
    }
    let built = cargo.output().context("starting cargo")?;
    if !built.status.success() {
        bail!("it does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
    }
    let messages: Vec<serde_json::Value> = String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    SUITES
        .iter()
        .map(|suite| {
            let of_suite = |message: &&serde_json::Value| message["target"]["name"] == *suite;
            let executable = messages.iter().filter(of_suite).find_map(|m| m["executable"].as_str());
            Ok((*suite, executable.with_context(|| format!("cargo built no executable of {suite}"))?.into()))
        })
        .collect()
}
