use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::key::variable;
use super::{Class, Invalid, Key, Kind, Off, Problem, Reader, Warning};

/// The key whose value is the directory that the other keys are read from.
const CONFIG_DIR: &str = "config-dir";
/// Stands for a word on the command line that is no flag.
const ARGUMENT: &str = "argument";

/// Where a value was said, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Flag,
    Environment,
    Directory,
    Default,
}

impl Origin {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Directory => "directory",
            Self::Default => "default",
        }
    }

    /// How a person finds the place again.
    pub(super) fn describe(self, key: &str) -> String {
        match self {
            Self::Flag if key == ARGUMENT => "from the command line".to_owned(),
            Self::Flag => format!("from the flag --{key}"),
            Self::Environment => format!("from the variable {}", variable(key)),
            Self::Directory => format!("from the file {key} in {CONFIG_DIR}"),
            Self::Default => "the default".to_owned(),
        }
    }
}

/// A value that someone gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// As it was written: for an alias, the alias.
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

/// What was said about every key, before a value is looked at.
#[derive(Clone, Debug)]
pub struct Settings {
    keys: &'static [Key],
    /// What is unknown in the directory is another program's.
    is_shared: bool,
    /// By [`Key::name`]; honoured and other known keys alike.
    known: BTreeMap<&'static str, Said>,
    unknown: Vec<Said>,
    without_effect: Vec<Said>,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

/// The three places, as the process got them.
pub struct Sources<A, E> {
    /// Without the program's name.
    pub arguments: A,
    pub environment: E,
}

impl<A, E> Sources<A, E>
where
    A: IntoIterator<Item = OsString>,
    E: IntoIterator<Item = (OsString, OsString)>,
{
    /// Reads all three. Never fails: what cannot be read is a [`Problem`] that [`Reader::finish`] returns.
    pub fn read(self, keys: &'static [Key]) -> Settings {
        self.collect(keys, false)
    }

    /// As [`Self::read`], of a directory that another program reads too and has the last word on: a key that is not in
    /// `keys` is most likely its own, and one that is nobody's is its to tell.
    pub fn read_shared(self, keys: &'static [Key]) -> Settings {
        self.collect(keys, true)
    }

    fn collect(self, keys: &'static [Key], is_shared: bool) -> Settings {
        let mut settings = Settings {
            keys,
            is_shared,
            known: BTreeMap::new(),
            unknown: Vec::new(),
            without_effect: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        };
        settings.read_arguments(self.arguments);
        settings.read_environment(self.environment);
        if let Some(dir) = settings.known.get(CONFIG_DIR).cloned()
            && !dir.value.is_empty()
        {
            settings.read_directory(&dir);
        }
        settings.classify();
        settings
    }
}

impl Settings {
    /// What was said about a key, or its default.
    pub fn said(&self, key: &Key) -> Said {
        self.known.get(key.name).cloned().unwrap_or_else(|| Said {
            key: key.name.to_owned(),
            value: key.default.to_owned(),
            origin: Origin::Default,
        })
    }

    pub const fn keys(&self) -> &'static [Key] {
        self.keys
    }

    /// What nobody knows, in the order in which it was found.
    pub fn unknown(&self) -> &[Said] {
        &self.unknown
    }

    /// What was said about keys that have no effect, or none by themselves: a line each for who debugs, which is written by
    /// [`crate::logging::begin`], for the log's own settings are read first.
    pub fn without_effect(&self) -> &[Said] {
        &self.without_effect
    }

    /// Parses values into the program's own types.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self, self.problems.clone(), self.warnings.clone())
    }

    fn find(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name || key.aliases.contains(&name))
    }

    /// Keeps the strongest value; of one strength, the key's own name wins over an alias, then the later one.
    fn say(&mut self, said: Said) {
        let Some(key) = self.find(&said.key) else {
            self.unknown.push(said);
            return;
        };
        if let Some(other) = self.known.get(key.name)
            && (other.origin, other.key != key.name) < (said.origin, said.key != key.name)
        {
            return;
        }
        self.known.insert(key.name, said);
    }

    /// `--key=value`, `--key value`, and for switches `--key`.
    fn read_arguments(&mut self, arguments: impl IntoIterator<Item = OsString>) {
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy().into_owned();
            let Some(flag) = text.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                self.refuse(ARGUMENT, &text, Origin::Flag, "flags only, as --key=value", "remove it");
                continue;
            };
            let (name, inline) = match flag.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (flag.to_owned(), None),
            };
            let value = match (inline, self.find(&name)) {
                (Some(value), _) => value,
                (None, Some(Key { kind: Kind::Bool, .. })) => "true".to_owned(),
                // Most flags of other programs are switches.
                (None, Some(key)) if key.class != Class::Honoured => "true".to_owned(),
                (None, known) => {
                    // An unknown flag takes the next argument too, as it most likely would if it were known.
                    let next = arguments.next_if(|next| !next.to_string_lossy().starts_with("--"));
                    match (next, known) {
                        (Some(next), _) => next.to_string_lossy().into_owned(),
                        (None, None) => String::new(),
                        (None, Some(key)) => {
                            let mend = format!("write --{name}=VALUE");
                            self.refuse(&name, "", Origin::Flag, &key.kind.allowed(), &mend);
                            continue;
                        }
                    }
                }
            };
            self.say(Said { key: name, value, origin: Origin::Flag });
        }
    }

    fn read_environment(&mut self, environment: impl IntoIterator<Item = (OsString, OsString)>) {
        let names: BTreeMap<String, &'static str> = self
            .keys
            .iter()
            .flat_map(|key| key.aliases.iter().chain([&key.name]).map(|name| (variable(name), *name)))
            .collect();
        let mut variables: Vec<(String, String)> = environment
            .into_iter()
            .filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })
            .filter(|(name, _)| name.starts_with("PORTWAY_"))
            .collect();
        variables.sort();
        for (name, value) in variables {
            match names.get(&name) {
                Some(key) => self.say(Said { key: (*key).to_owned(), value, origin: Origin::Environment }),
                None if is_service_link(&name) => {}
                None => {
                    let key = name.trim_start_matches("PORTWAY_").to_ascii_lowercase().replace('_', "-");
                    self.say(Said { key, value, origin: Origin::Environment });
                }
            }
        }
    }

    /// One file a key, as kubelet mounts a ConfigMap: symlinks are followed, names with a dot in front skipped.
    fn read_directory(&mut self, said: &Said) {
        let dir = Path::new(&said.value);
        let entries = match fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => {
                let invalid = Invalid::new(
                    format!("a directory that can be read ({error})"),
                    "mount the ConfigMap there, or leave the key out",
                );
                self.problems.push(Problem::of(said, invalid));
                return;
            }
        };
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            let path = dir.join(&name);
            let name = name.to_string_lossy().into_owned();
            if name.starts_with('.') || path.is_dir() {
                continue;
            }
            match fs::read(&path).map(String::from_utf8) {
                Ok(Ok(value)) => {
                    let value = value.trim_end_matches(['\n', '\r']).to_owned();
                    self.say(Said { key: name, value, origin: Origin::Directory });
                }
                Ok(Err(_)) => self.refuse(&name, "(bytes)", Origin::Directory, "UTF-8 text", "write text"),
                Err(error) => {
                    let allowed = format!("a file that can be read ({error})");
                    self.refuse(
                        &name,
                        "",
                        Origin::Directory,
                        &allowed,
                        "give the process the right to read it",
                    );
                }
            }
        }
    }

    fn refuse(&mut self, key: &str, value: &str, origin: Origin, allowed: &str, mend: &str) {
        let said = Said { key: key.to_owned(), value: value.to_owned(), origin };
        self.problems.push(Problem::of(&said, Invalid::new(allowed, mend)));
    }

    /// What the classes other than honoured have to say.
    fn classify(&mut self) {
        for key in self.keys {
            let Some(said) = self.known.get(key.name) else { continue };
            let warn = |message: String| Warning { key: said.key.clone(), origin: said.origin, message };
            match key.class {
                Class::Honoured | Class::Operator | Class::Unknown => {}
                Class::Retired => self.without_effect.push(said.clone()),
                Class::NotOffered | Class::Dangerous if !key.asks(&said.value) => {
                    if key.off == Off::Always {
                        self.without_effect.push(said.clone());
                    }
                }
                Class::NotOffered => self.warnings.push(warn(format!("not offered: {}", key.help))),
                Class::Dangerous => {
                    let off = match key.off {
                        Off::At([off, ..]) => off,
                        Off::At([]) | Off::Default | Off::Always => key.default,
                    };
                    let allowed = format!("{off:?} only: Portway does not offer this");
                    self.problems.push(Problem::of(said, Invalid::new(allowed, key.help)));
                }
            }
        }
        if self.is_shared {
            let of_directory = |said: &mut Said| said.origin == Origin::Directory;
            self.without_effect.extend(self.unknown.extract_if(.., of_directory));
        }
        for said in &self.unknown {
            let message = match self.nearest(&said.key) {
                Some(nearest) => format!("no such key; did you mean {nearest}? it is ignored"),
                None => "no such key; it is ignored".to_owned(),
            };
            self.warnings.push(Warning { key: said.key.clone(), origin: said.origin, message });
        }
    }

    /// The known key that differs least, if it is near enough to be meant.
    fn nearest(&self, name: &str) -> Option<&'static str> {
        self.keys
            .iter()
            .flat_map(|key| key.aliases.iter().chain([&key.name]))
            .map(|known| (strsim::osa_distance(name, known), *known))
            .min()
            .filter(|(distance, known)| *distance <= 2.max(known.len() / 4))
            .map(|(_, known)| known)
    }
}

/// Variables that Kubernetes sets in a pod for a Service named `portway…` (`PORTWAY_PORT=tcp://…`).
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}
