use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};
use portway_datapath::layout::{self, MAGLEV_SLOTS, Sizes};

use super::error::ProgramError;
use super::hook::Hook;
use super::object::object;

/// The program that changes an element of a hash map in place; it is run, never attached.
const STORE_WORD: &str = "pw_store_word";

/// Of the pod network. Where there is none the object makes one of its own, which stays empty.
const POD_MAPS: [&str; 1] = [layout::NETNS];

/// Maps of an earlier agent; without a pin of one the object makes one of its own, which stays empty.
const EARLIER_MAPS: [&str; 4] =
    [layout::SOCK_OLD, layout::SOCK_UDP_OLD, layout::SOCK_REPLIES_OLD, layout::AFFINITY_OLD];

/// Every other map of the object.
const PINNED_MAPS: [&str; 14] = [
    layout::FRONTENDS,
    layout::SERVICES,
    layout::RUNS,
    layout::MAGLEV,
    layout::BACKENDS,
    layout::AFFINITY,
    layout::SOURCE_RANGES,
    layout::SERVICE_NAMES,
    layout::SOCK,
    layout::SOCK_UDP,
    layout::SOCK_REPLIES,
    layout::LOCAL_ADDRESSES,
    layout::CONFIG,
    layout::METRICS,
];

/// What loads the object: first for the self-test, then for real.
///
/// Making one takes most of the time of a load (aya reads the kernel's type information, whether it is needed or not),
/// and nothing else: it may be done on another thread, early.
#[derive(Debug)]
pub struct Loader {
    loader: EbpfLoader<'static>,
}

/// A program as the kernel took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedProgram {
    pub name: &'static str,
    /// The kernel's number, as `bpftool prog` shows it.
    pub id: u32,
    /// Instructions that the verifier walked through; its limit is a million. `None` where the kernel does not say.
    pub verified_instructions: Option<u32>,
    /// For verification and translation to machine code.
    pub load_time: Duration,
}

/// Programs in the kernel. They end with this value unless [`Programs::attach`] pinned links to them; maps outlive
/// neither pins nor programs.
#[derive(Debug)]
pub struct Programs {
    hooks: Vec<(Hook, OwnedFd)>,
    /// Those that read an earlier agent's maps too; none where there are no such maps.
    both: Vec<(Hook, OwnedFd)>,
    store_word: OwnedFd,
    loaded: Vec<LoadedProgram>,
}

impl Loader {
    /// Fails if the agent was built without the object.
    pub fn new() -> Result<Self, ProgramError> {
        object()?;
        let mut loader = EbpfLoader::new();
        // The programs have no relocations against the kernel's types.
        loader.btf(None);
        Ok(Self { loader })
    }

    /// Loads every program onto the maps pinned in `maps`, each under its name. Where maps of an earlier agent are pinned
    /// there, too, also the programs that read both.
    ///
    /// Their layouts must have been compared with [`portway_datapath::layout`]: the kernel compares nothing.
    pub fn load(mut self, maps: &Path) -> Result<Programs, ProgramError> {
        for name in PINNED_MAPS {
            let path = maps.join(name);
            if !path.exists() {
                return Err(ProgramError::NoMap { name, path });
            }
            self.loader.map_pin_path(name, path);
        }
        for name in POD_MAPS {
            let path = maps.join(name);
            if path.exists() {
                self.loader.map_pin_path(name, path);
            } else {
                self.loader.map_max_entries(name, 1);
            }
        }
        let mut has_earlier = false;
        for name in EARLIER_MAPS {
            let path = maps.join(name);
            if path.exists() {
                self.loader.map_pin_path(name, path);
                has_earlier = true;
            }
        }
        let mut ebpf = self.open()?;
        let mut loaded = Vec::new();
        let store_word = load_program(&mut ebpf, STORE_WORD, &mut loaded)?;
        let hooks = Hook::ALL
            .into_iter()
            .map(|hook| Ok((hook, load_program(&mut ebpf, hook.name(), &mut loaded)?)))
            .collect::<Result<_, ProgramError>>()?;
        let both = Hook::ALL
            .into_iter()
            .filter(|_| has_earlier)
            .filter_map(|hook| Some((hook, hook.both_name()?)))
            .map(|(hook, name)| Ok((hook, load_program(&mut ebpf, name, &mut loaded)?)))
            .collect::<Result<_, ProgramError>>()?;
        Ok(Programs { hooks, both, store_word, loaded })
    }

    /// The object on maps of its own, of these sizes, with no program loaded.
    pub(super) fn open_private(&mut self, sizes: &Sizes) -> Result<Ebpf, ProgramError> {
        let Sizes {
            frontends,
            services,
            runs,
            backends,
            maglev,
            affinity,
            source_ranges,
            local_addresses,
            sockets,
            exchanges,
        } = *sizes;
        for (name, entries) in [
            (layout::FRONTENDS, frontends),
            (layout::SERVICES, services),
            (layout::SERVICE_NAMES, services),
            (layout::RUNS, runs),
            (layout::BACKENDS, backends),
            (layout::MAGLEV, maglev.div_ceil(MAGLEV_SLOTS)),
            (layout::AFFINITY, affinity),
            (layout::SOURCE_RANGES, source_ranges),
            (layout::LOCAL_ADDRESSES, local_addresses),
            (layout::SOCK, sockets),
            (layout::SOCK_UDP, exchanges),
            (layout::SOCK_REPLIES, exchanges),
        ] {
            // Without effect on a map that is pinned, so a later load is not bound by it.
            self.loader.map_max_entries(name, entries);
        }
        self.open()
    }

    fn open(&mut self) -> Result<Ebpf, ProgramError> {
        self.loader.load(object()?).map_err(|e| ProgramError::Object(Box::new(e)))
    }
}

impl Programs {
    /// `pw_store_word`, for `BPF_PROG_TEST_RUN`.
    ///
    /// 32 bytes in: the map (1 byte; 0 `pw_frontends`, 1 `pw_local_addresses`), 3 zero bytes, the key (20 bytes; an
    /// address takes 16), the word (8 bytes, the machine's order). Returns 0 if it was stored, 1 if there is no such
    /// key, 2 if the bytes are none of this.
    pub fn store_word(&self) -> BorrowedFd<'_> {
        self.store_word.as_fd()
    }

    /// What was loaded, in order.
    pub fn loaded(&self) -> &[LoadedProgram] {
        &self.loaded
    }

    /// The kernel's number of the program for a hook.
    pub(super) fn id(&self, hook: Hook) -> Option<u32> {
        self.loaded.iter().find(|program| program.name == hook.name()).map(|program| program.id)
    }

    pub(super) fn both(&self) -> impl Iterator<Item = (Hook, BorrowedFd<'_>)> {
        self.both.iter().map(|(hook, fd)| (*hook, fd.as_fd()))
    }

    pub(super) fn hooks(&self) -> impl Iterator<Item = (Hook, BorrowedFd<'_>)> {
        self.hooks.iter().map(|(hook, fd)| (*hook, fd.as_fd()))
    }
}

/// Loads one program of an opened object.
pub(super) fn load_program(
    ebpf: &mut Ebpf,
    name: &'static str,
    loaded: &mut Vec<LoadedProgram>,
) -> Result<OwnedFd, ProgramError> {
    let refused = |e| ProgramError::Refused { name, source: Box::new(e) };
    let program = ebpf.program_mut(name).ok_or(ProgramError::NoProgram { name })?;
    let start = Instant::now();
    if let Program::CgroupSockAddr(program) = program {
        program.load()
    } else if let Program::CgroupSock(program) = program {
        program.load()
    } else if let Program::SchedClassifier(program) = program {
        program.load()
    } else {
        return Err(ProgramError::NoProgram { name });
    }
    .map_err(refused)?;
    let load_time = start.elapsed();
    let info = program.info().map_err(refused)?;
    loaded.push(LoadedProgram {
        name,
        id: info.id(),
        verified_instructions: info.verified_instruction_count(),
        load_time,
    });
    let fd = program.fd().map_err(refused)?.as_fd().try_clone_to_owned();
    fd.map_err(ProgramError::pin("keep a descriptor of program", name))
}
