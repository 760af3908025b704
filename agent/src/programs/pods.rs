//! The second object: the packet programs of the pod network.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use aya::EbpfLoader;

use super::error::ProgramError;
use super::load::{LoadedProgram, load_program};
use super::object::pods_object;
use crate::maps::{MapId, PodMapId};

/// A program of the object, by the place where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodProgram {
    FromPod,
    ToPod,
    FromDevice,
    ToDevice,
    FromTunnel,
    ToTunnel,
}

/// Packet programs in the kernel. They end with this value unless they are attached.
#[derive(Debug)]
pub(super) struct PodPrograms {
    programs: Vec<(PodProgram, OwnedFd, u32)>,
    loaded: Vec<LoadedProgram>,
}

impl PodProgram {
    pub const ALL: [Self; 6] =
        [Self::FromPod, Self::ToPod, Self::FromDevice, Self::ToDevice, Self::FromTunnel, Self::ToTunnel];

    /// The name of the program in the object, and of its filter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromPod => "pw_from_pod",
            Self::ToPod => "pw_to_pod",
            Self::FromDevice => "pw_from_device",
            Self::ToDevice => "pw_to_device",
            Self::FromTunnel => "pw_from_tunnel",
            Self::ToTunnel => "pw_to_tunnel",
        }
    }
}

impl PodPrograms {
    /// Loads every program onto the maps pinned in `maps`, each under its name: those of the services and of the pod network.
    /// Their layouts must have been compared.
    pub(super) fn load(maps: &Path) -> Result<Self, ProgramError> {
        let mut loader = EbpfLoader::new();
        // The programs have no relocations against the kernel's types.
        loader.btf(None);
        let names =
            MapId::ALL.into_iter().map(MapId::name).chain(PodMapId::ALL.into_iter().map(PodMapId::name));
        for name in names {
            let path = maps.join(name);
            if !path.exists() {
                return Err(ProgramError::NoMap { name, path });
            }
            loader.map_pin_path(name, path);
        }
        let mut ebpf = loader.load(pods_object()?).map_err(|e| ProgramError::Object(Box::new(e)))?;
        let mut loaded = Vec::new();
        let mut programs = Vec::new();
        for program in PodProgram::ALL {
            let fd = load_program(&mut ebpf, program.name(), &mut loaded)?;
            let id = loaded.last().map_or(0, |loaded| loaded.id);
            programs.push((program, fd, id));
        }
        Ok(Self { programs, loaded })
    }

    pub(super) fn loaded(&self) -> &[LoadedProgram] {
        &self.loaded
    }

    /// A program and its number in the kernel.
    pub(super) fn get(&self, wanted: PodProgram) -> Result<(BorrowedFd<'_>, u32), ProgramError> {
        let found = self.programs.iter().find(|(program, ..)| *program == wanted);
        let (_, fd, id) = found.ok_or(ProgramError::NoProgram { name: wanted.name() })?;
        Ok((fd.as_fd(), *id))
    }
}
