//! Writes connection secrets to a file for tools that decrypt captured packets (the SSLKEYLOGFILE format, RFC 9850).
//! Anyone with the file can read the traffic, so nothing is written unless a plan requests it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, PoisonError};

use rustls::KeyLog;

use super::files::{FileError, NamedFile};

/// The key log file. Each line is written in one system call, so that several processes can share a file.
#[derive(Debug)]
pub(super) struct KeyLogFile(Mutex<File>);

impl KeyLogFile {
    /// Opens the file for appending; creates it if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened for writing.
    pub(super) fn open(file: NamedFile<'_>) -> Result<KeyLogFile, FileError> {
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(file.1);
        let opened = opened.map_err(|e| file.error(e))?;
        Ok(KeyLogFile(Mutex::new(opened)))
    }
}

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A write error, such as a full disk, must not end the load.
        if let Err(e) = file.write_all(line.as_bytes()) {
            tracing::warn!("key log: {e}");
        }
    }
}
