//! Storage that is written once and then read at any offset: in memory while it is small, otherwise in a temporary
//! file.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

/// Maximum size of a spool in memory, in bytes.
const MAX_MEMORY_BYTES: usize = 4 << 20;

/// A spool that is being written.
#[derive(Default)]
pub(super) struct SpoolWriter {
    held: Vec<u8>,
    /// An unlinked file, which disappears when it is closed.
    file: Option<BufWriter<File>>,
    length: u64,
}

impl SpoolWriter {
    /// Returns the bytes written so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// When the temporary folder can't be written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        if self.file.is_none() && self.held.len() + bytes.len() > MAX_MEMORY_BYTES {
            let mut file = BufWriter::with_capacity(1 << 18, tempfile::tempfile()?);
            file.write_all(&self.held)?;
            self.held = Vec::new();
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => {
                self.held.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Ends writing, and returns the spool.
    ///
    /// # Errors
    /// Returns the errors of [`SpoolWriter::write`].
    pub(super) fn finish(self) -> io::Result<Spool> {
        Ok(match self.file {
            None => Spool::Memory(self.held),
            Some(file) => Spool::File(file.into_inner().map_err(io::IntoInnerError::into_error)?),
        })
    }
}

/// A spool that has been written.
pub(super) enum Spool {
    /// The bytes in memory.
    Memory(Vec<u8>),
    /// An unlinked file with the bytes.
    File(File),
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spool::Memory(bytes) => write!(f, "Held({} bytes)", bytes.len()),
            Spool::File(_) => f.write_str("File"),
        }
    }
}

impl Spool {
    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// When the bytes can't be read, or the spool is too short.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Spool::File(file) => file.read_exact_at(out, offset),
            Spool::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(out.len());
                let found = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(found);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spool_reads_back_from_memory_and_file() {
        for length in [10, MAX_MEMORY_BYTES + 10] {
            let mut writer = SpoolWriter::default();
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            for part in bytes.chunks(65_537) {
                writer.write(part).unwrap();
            }
            assert_eq!(writer.length(), length as u64);
            let spool = writer.finish().unwrap();
            assert_eq!(matches!(spool, Spool::File(_)), length > MAX_MEMORY_BYTES);
            let mut read = [0; 7];
            spool.read(length as u64 - 7, &mut read).unwrap();
            assert_eq!(read, bytes[length - 7..]);
            assert!(spool.read(length as u64 - 6, &mut read).is_err());
        }
    }
}
