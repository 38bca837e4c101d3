//! The environment in which specs are resolved.

use std::any::Any;
use std::path::Path;

use crate::rows::recording::{Recording, RecordingOptions};

/// Access to files, variables and commands for resolution. It is a trait, so that resolution itself does no I/O.
pub trait ResolveContext {
    /// Returns an environment variable.
    fn env_variable(&self, name: &str) -> Option<String>;
    /// Reads a file as text.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    fn read(&self, path: &Path) -> std::io::Result<String>;
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>>;
    /// Returns the checksum of a file. `None`: it can't be read, or not twice, such as a pipe.
    fn file_checksum(&self, _path: &Path) -> Option<String> {
        None
    }
    /// Reads the arrivals of a file.
    ///
    /// # Errors
    /// Returns why the file has no arrivals.
    fn read_recording(&self, request: &RecordingOptions) -> Result<Recording, String> {
        let bytes = self.read_bytes(&request.file);
        let bytes = bytes.map_err(|e| format!("can't read {}: {e}", request.file.display()))?;
        Recording::read(request, Box::new(bytes.as_slice()))
    }
    /// Returns the output of a shell command without its last newline.
    ///
    /// # Errors
    /// Returns why the command has no output.
    fn run_command(&self, command: &str) -> Result<String, String> {
        Err(format!("`{command}` can't be run here"))
    }
    /// Returns whether code that the plan refers to (plugins) may run. Such code may not run if the plan is only
    /// displayed.
    fn may_run_code(&self) -> bool {
        true
    }
    /// Answers a question that only one protocol asks. The type of `question` belongs to that protocol, and also
    /// receives the answer.
    fn answer_protocol_query(&self, question: &mut dyn Any) {
        let _ = question;
    }
}
