//! The environment in which specs are resolved.

use std::any::Any;
use std::path::Path;

use crate::recording::{Recording, RecordingRequest};

/// Files, variables and commands that resolution needs, behind a trait so that resolution itself is pure.
pub trait ResolveContext {
    /// Returns an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Reads a file as text.
    ///
    /// # Errors
    /// Those of the file system.
    fn read(&self, path: &Path) -> std::io::Result<String>;
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>>;
    /// Reads the arrivals of a file.
    ///
    /// # Errors
    /// Why the file has no arrivals.
    fn recording(&self, request: &RecordingRequest) -> Result<Recording, String> {
        let bytes = self.read_bytes(&request.file);
        let bytes = bytes.map_err(|e| format!("can't read {}: {e}", request.file.display()))?;
        Recording::read(request, Box::new(bytes.as_slice()))
    }
    /// Returns the output of a shell command without its last newline.
    ///
    /// # Errors
    /// Why the command has no output.
    fn printed(&self, command: &str) -> Result<String, String> {
        Err(format!("`{command}` can't be run here"))
    }
    /// Returns whether code that the plan refers to (plugins) may run. Such code may not run if the plan is only
    /// displayed.
    fn may_run_code(&self) -> bool {
        true
    }
    /// Answers a request that only one protocol makes: `question` has a type of that protocol, and contains the answer
    /// afterwards.
    fn ask(&self, question: &mut dyn Any) {
        let _ = question;
    }
}
