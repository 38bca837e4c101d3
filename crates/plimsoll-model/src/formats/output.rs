//! Writes files that a command produces: reports, tables, documents, logs.
//!
//! Invariant: a file is only reported as written once the file system has stored it. A full disk, an exhausted quota or
//! a lost file server may become apparent only after `write` has succeeded. Closing the file would report the error,
//! but the standard library ignores errors of closing.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes `contents` to the file `path`, which is created or truncated first, and syncs it.
///
/// # Errors
/// When the file can't be created or written. It may then contain a part of the contents.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(contents.as_ref())?;
    sync(&file)
}

/// Waits until everything written to `file` is stored.
///
/// # Errors
/// When the data can't be stored, for example for lack of space.
pub fn sync(file: &File) -> io::Result<()> {
    retry_sync(|| file.sync_data())
}

fn retry_sync(mut sync: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match sync() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A pipe, a terminal or /dev/null (fsync(2): EINVAL) has no storage to sync.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
            synced => return synced,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn late_write_errors_are_reported() {
        for kind in [
            io::ErrorKind::QuotaExceeded,
            io::ErrorKind::StorageFull,
            io::ErrorKind::Other,
        ] {
            let error = retry_sync(|| Err(kind.into())).unwrap_err();
            assert_eq!(error.kind(), kind);
        }
        let mut attempts = 0;
        let interrupted = || {
            attempts += 1;
            match attempts {
                1 => Err(io::ErrorKind::Interrupted.into()),
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        };
        assert_eq!(
            retry_sync(interrupted).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
    }

    #[test]
    fn non_disk_files_are_still_written() {
        write(Path::new("/dev/null"), "text").unwrap();
        let error = write(Path::new("/dev/full"), "text").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "a longer text").unwrap();
        write(&path, "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
