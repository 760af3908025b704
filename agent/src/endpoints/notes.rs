//! What the plugin was asked to remove while it did not reach the agent.

use std::path::PathBuf;

use portway_cni::deletions;
use portway_cni::failure::{Failure, code};
use portway_cni::protocol::AttachmentId;

use super::Endpoints;

impl Endpoints {
    /// Removes what notes are about, and then the notes. What cannot be removed now is tried again by the next call.
    pub(super) fn follow_notes(&self) {
        for (path, id) in self.read_notes() {
            let Some(_claim) = self.try_claim(&id) else { continue };
            // An ADD that has come meanwhile took it away.
            if !path.exists() {
                continue;
            }
            let removed =
                self.remove_attachment(&id, "the container runtime ended the pod while no agent ran");
            if let Err(error) = removed {
                tracing::warn!(container = id.container, %error, "what a note of the CNI plugin asks for cannot be done yet");
            } else if let Err(error) = deletions::done(&path) {
                tracing::warn!(path = %path.display(), %error, "a note of the CNI plugin cannot be removed");
            }
        }
    }

    /// Takes away the note about what an attachment was before, for an ADD that has claimed it.
    pub(super) fn forget_note(&self, id: &AttachmentId) -> Result<(), Failure> {
        for (path, _) in self.read_notes().into_iter().filter(|(_, noted)| noted == id) {
            deletions::done(&path).map_err(|error| {
                let msg = format!("cannot remove {}: {error}", path.display());
                Failure::new(
                    code::IO,
                    msg,
                    "the directory of the agent's socket must be writable; the runtime tries again",
                )
            })?;
        }
        Ok(())
    }

    /// Every note that can be read.
    pub(super) fn read_notes(&self) -> Vec<(PathBuf, AttachmentId)> {
        let directory = self.known().notes.clone();
        let notes = deletions::notes(&directory).unwrap_or_else(|error| {
            tracing::warn!(directory = %directory.display(), %error, "the notes of the CNI plugin cannot be read");
            Vec::new()
        });
        let read = notes.into_iter().filter_map(|(path, id)| match id {
            Ok(id) => Some((path, id)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a note of the CNI plugin cannot be read");
                None
            }
        });
        read.collect()
    }
}
