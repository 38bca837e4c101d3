//! What resolving needs of the world around it.

use std::any::Any;
use std::path::Path;

use crate::recording::{Recording, RecordingRequest};

/// What resolving needs of the world: kept behind a trait, so that it is pure itself.
pub trait Surroundings {
    /// An environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file's text.
    ///
    /// # Errors
    /// The file system's.
    fn read(&self, path: &Path) -> std::io::Result<String>;
    /// A file's bytes.
    ///
    /// # Errors
    /// The file system's.
    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>>;
    /// The arrivals of a file.
    ///
    /// # Errors
    /// Why it has none.
    fn recording(&self, request: &RecordingRequest) -> Result<Recording, String> {
        let bytes = self.read_bytes(&request.file);
        let bytes = bytes.map_err(|e| format!("can't read {}: {e}", request.file.display()))?;
        Recording::read(request, Box::new(bytes.as_slice()))
    }
    /// What a command of the shell prints, without the last line's end.
    ///
    /// # Errors
    /// Why it prints nothing.
    fn printed(&self, command: &str) -> Result<String, String> {
        Err(format!("`{command}` can't be run here"))
    }
    /// Whether code that the plan names may run here: that of plugins. It may not where the plan is only shown.
    fn may_run_code(&self) -> bool {
        true
    }
    /// What only one protocol asks of the world: a question of a type of its own, which holds the answer
    /// afterwards.
    fn ask(&self, question: &mut dyn Any) {
        let _ = question;
    }
}
