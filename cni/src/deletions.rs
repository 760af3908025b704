//! DEL while no agent runs: a note for the one that starts next.
//!
//! The plugin writes the note and then tries to connect once more; the agent listens and then reads the notes. So
//! either the agent is reached, or it finds the note.

use std::io;
use std::path::{Path, PathBuf};

use crate::protocol::AttachmentId;

/// The directory's name, beside the agent's socket.
const DIRECTORY: &str = "cni-deletions";

/// Where the notes for the agent of `socket` are.
pub fn directory(socket: &Path) -> PathBuf {
    socket.with_file_name(DIRECTORY)
}

/// Leaves a note.
///
/// # Errors
/// It cannot be written.
pub fn note(directory: &Path, id: &AttachmentId) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let path = path(directory, id);
    let unfinished = path.with_extension("tmp");
    std::fs::write(&unfinished, serde_json::to_vec(id)?)?;
    std::fs::rename(unfinished, path)
}

/// The files of notes and what each says. What cannot be read stays where it is.
///
/// # Errors
/// The directory cannot be read. That there is none is no error.
pub fn notes(directory: &Path) -> io::Result<Vec<(PathBuf, io::Result<AttachmentId>)>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut notes = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let id = std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
            notes.push((path, id));
        }
    }
    Ok(notes)
}

/// Takes a note away, after what it asks for was done. That it is gone is no error.
///
/// # Errors
/// It cannot be removed.
pub fn done(note: &Path) -> io::Result<()> {
    match std::fs::remove_file(note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Container and interface have no `@` between them that is not this one: neither may hold a slash.
pub(crate) fn path(directory: &Path, id: &AttachmentId) -> PathBuf {
    directory.join(format!("{}@{}.json", id.container, id.interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_until_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("notes");
        assert!(notes(&dir).unwrap().is_empty());
        let id = AttachmentId { container: "a.tmp".to_owned(), interface: "eth0".to_owned() };
        note(&dir, &id).unwrap();
        note(&dir, &id).unwrap();
        std::fs::write(dir.join("b@eth0.json"), "{").unwrap();
        let found = notes(&dir).unwrap();
        let read: Vec<_> = found.iter().filter_map(|(path, id)| Some((path, id.as_ref().ok()?))).collect();
        assert_eq!((found.len(), read.len(), read[0].1), (2, 1, &id));
        done(read[0].0).unwrap();
        done(read[0].0).unwrap();
        assert_eq!(notes(&dir).unwrap().len(), 1);
    }
}
