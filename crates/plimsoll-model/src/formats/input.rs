//! Reads files whose names come from outside: from the user, a plan, or a peer's request.
//!
//! Invariant: no function blocks forever. Opening a FIFO blocks until another process writes to it, and a device may
//! have no end. [`open_file`] opens regular files only, for names that a peer sent or this program chose; [`read`] also
//! accepts a FIFO (such as `<(…)` in a shell) or a terminal, within limits. A folder whose files may come from someone
//! else is trusted even less: [`open_untrusted_file`] does not follow links, and [`read_line`] and [`untrusted_file_to_string`] bound
//! their memory.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Maximum time that a stream may provide no data.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes that are read from a stream.
const MAX_STREAM_BYTES: u64 = 256 << 20;

/// Opens a regular file.
///
/// # Errors
/// When the file does not exist, or `path` is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    open_if_regular(path, metadata(path)?.file_type(), 0)
}

/// Opens a regular file in a folder that someone else may have written.
///
/// # Errors
/// Returns the errors of [`open_file`], and one for a link, which could refer to any file of this machine.
pub fn open_untrusted_file(path: &Path) -> io::Result<File> {
    let kind = fs::symlink_metadata(path)
        .map_err(simplify_error)?
        .file_type();
    open_if_regular(path, kind, libc::O_NOFOLLOW)
}

/// Returns whether [`open_untrusted_file`] accepts the path, given read permission.
pub fn is_plain_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Returns the folder `name` below `dir`.
///
/// # Errors
/// When `name` leads outside, by its components or by links.
pub fn resolve_subfolder(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let mut path = dir.to_owned();
    for component in Path::new(name).components() {
        let Component::Normal(part) = component else {
            return Err(invalid_input(format!(
                "`{name}` is not a relative path without `..`"
            )));
        };
        path.push(part);
        let kind = fs::symlink_metadata(&path)
            .map_err(simplify_error)?
            .file_type();
        if !kind.is_dir() {
            let what = describe_file_type(kind);
            return Err(invalid_input(format!(
                "{} is {what}, not a folder",
                path.display()
            )));
        }
    }
    Ok(path)
}

/// Opens `path`, whose file type is `kind`; fails if `kind` is not a regular file.
fn open_if_regular(path: &Path, kind: FileType, flags: libc::c_int) -> io::Result<File> {
    // Opening any other kind of file can block, rewind a tape, or take another reader's data.
    require_regular_file(kind)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags)
        .open(path)
        .map_err(simplify_error)?;
    // Check again: the file may have been replaced between the first check and opening it.
    require_regular_file(file.metadata()?.file_type())?;
    Ok(file)
}

/// Splits an argument that contains text or names a file: returns the text itself, or the path in `@FILE`. For `@-` or
/// `-`, returns the text of stdin.
///
/// # Errors
/// When stdin can't be read or is not UTF-8.
pub fn read_text_argument(typed: Option<&str>) -> io::Result<(Option<String>, Option<PathBuf>)> {
    Ok(match typed.map(|text| (text, text.strip_prefix('@'))) {
        None => (None, None),
        Some(("-", _) | (_, Some("-"))) => (Some(read_stdin_to_string()?), None),
        Some((_, Some(path))) => (None, Some(path.into())),
        Some((text, None)) => (Some(text.to_owned()), None),
    })
}

fn metadata(path: &Path) -> io::Result<Metadata> {
    fs::metadata(path).map_err(simplify_error)
}

/// Replaces the system's messages for common errors with plain wording without error numbers.
fn simplify_error(error: io::Error) -> io::Error {
    let problem = match error.kind() {
        io::ErrorKind::NotFound => "no such file",
        io::ErrorKind::PermissionDenied => "permission denied",
        _ => return error,
    };
    io::Error::new(error.kind(), problem)
}

fn require_regular_file(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        Ok(())
    } else {
        Err(invalid_input(format!(
            "{}, not a file",
            describe_file_type(kind)
        )))
    }
}

fn invalid_input(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

fn describe_file_type(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_symlink() {
        "a link"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "something else"
    }
}

/// Reads a regular file as text, and removes a byte-order mark, as do all functions here that read text.
///
/// # Errors
/// Returns the errors of [`open_file`], and one if the file can't be read or is not UTF-8.
pub fn file_to_string(path: &Path) -> io::Result<String> {
    let mut content = Vec::new();
    open_file(path)?.read_to_end(&mut content)?;
    decode_text(content)
}

/// Reads at most `max_bytes` of text from a file in a folder that someone else may have written.
///
/// # Errors
/// Returns the errors of [`open_untrusted_file`], and one when the file can't be read, is longer, or is not UTF-8.
pub fn untrusted_file_to_string(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut content = Vec::new();
    open_untrusted_file(path)?
        .take(max_bytes + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > max_bytes {
        return Err(invalid_input(format!("it has more than {max_bytes} bytes")));
    }
    decode_text(content)
}

/// How a line that was read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnd {
    /// The line ended with a line feed.
    Newline,
    /// The input ended, in the line or before it.
    EndOfInput,
}

/// Clears `line`, and reads the next line into it, without the line feed.
///
/// # Errors
/// When reading fails, or the line is longer than `max_bytes`.
pub fn read_line(
    from: &mut impl BufRead,
    line: &mut Vec<u8>,
    max_bytes: usize,
) -> io::Result<LineEnd> {
    line.clear();
    let limit = max_bytes as u64 + 1;
    from.take(limit).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(LineEnd::Newline);
    }
    if line.len() > max_bytes {
        Err(invalid_input(format!(
            "a line of more than {max_bytes} bytes"
        )))
    } else {
        Ok(LineEnd::EndOfInput)
    }
}

/// Reads a whole file. A FIFO or a character device may provide at most 256 MiB, with no more than 30 s between two
/// reads.
///
/// # Errors
/// When the file can't be read, or exceeds these limits.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let kind = metadata(path)?.file_type();
    if kind.is_fifo() || kind.is_char_device() {
        let path = path.to_owned();
        return read_stream(
            || File::open(path),
            describe_file_type(kind),
            STREAM_IDLE_TIMEOUT,
            MAX_STREAM_BYTES,
        );
    }
    let mut content = Vec::new();
    open_file(path)?.read_to_end(&mut content)?;
    Ok(content)
}

/// Reads text like [`read`].
///
/// # Errors
/// Returns the errors of [`read`], and one when the text is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    decode_text(read(path)?)
}

/// Reads all of standard input, within the limits of [`read`].
///
/// # Errors
/// Returns the errors of [`read`].
pub fn read_stdin() -> io::Result<Vec<u8>> {
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let kind = stdin.metadata()?.file_type();
    if kind.is_dir() {
        return Err(invalid_input("a folder, not a file".to_owned()));
    }
    let most = if kind.is_file() {
        u64::MAX
    } else {
        MAX_STREAM_BYTES
    };
    read_stream(
        || Ok(io::stdin()),
        describe_file_type(kind),
        STREAM_IDLE_TIMEOUT,
        most,
    )
}

/// Reads standard input as text.
///
/// # Errors
/// Returns the errors of [`read_stdin`], and one when the text is not UTF-8.
pub fn read_stdin_to_string() -> io::Result<String> {
    decode_text(read_stdin()?)
}

/// The byte-order mark of UTF-8, which some editors and shells write at the start of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes a byte-order mark at the start of `content`.
pub fn strip_byte_order_mark(mut content: Vec<u8>) -> Vec<u8> {
    if content.starts_with(BYTE_ORDER_MARK) {
        content.drain(..BYTE_ORDER_MARK.len());
    }
    content
}

/// Converts to text without a byte-order mark.
fn decode_text(content: Vec<u8>) -> io::Result<String> {
    let problem = if content.starts_with(b"\xff\xfe") || content.starts_with(b"\xfe\xff") {
        "it is UTF-16 (its first bytes are that byte-order mark): save it as UTF-8"
    } else {
        "it is not UTF-8"
    };
    String::from_utf8(strip_byte_order_mark(content))
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, problem))
}

fn read_stream<R: Read>(
    open: impl FnOnce() -> io::Result<R> + Send + 'static,
    what: &'static str,
    idle_timeout: Duration,
    max_bytes: u64,
) -> io::Result<Vec<u8>> {
    let (sender, blocks) = mpsc::channel();
    // The thread may block forever; this is harmless, because nothing joins it.
    thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || {
            if let Err(e) = open().and_then(|stream| forward_chunks(stream, &sender)) {
                let _ = sender.send(Err(e));
            }
        })?;
    let mut content = Vec::new();
    loop {
        match blocks.recv_timeout(idle_timeout) {
            Ok(Ok(bytes)) => content.extend_from_slice(&bytes),
            Ok(Err(e)) => return Err(e),
            Err(RecvTimeoutError::Disconnected) => return Ok(content),
            Err(RecvTimeoutError::Timeout) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "it is {what}, and no data arrived for {} s",
                        idle_timeout.as_secs()
                    ),
                ));
            }
        }
        if content.len() as u64 > max_bytes {
            return Err(invalid_input(format!(
                "it is {what}, and did not end within {} MiB",
                max_bytes >> 20
            )));
        }
    }
}

/// Sends the stream's data until it ends, or until the receiver is dropped.
fn forward_chunks(mut stream: impl Read, sender: &Sender<io::Result<Vec<u8>>>) -> io::Result<()> {
    let mut block = vec![0; 64 << 10];
    loop {
        match stream.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(n) if sender.send(Ok(block[..n].to_vec())).is_err() => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        path
    }

    #[test]
    fn non_regular_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        assert_eq!(file_to_string(&file).unwrap(), "text");
        fs::write(&file, b"\xef\xbb\xbftext\xef\xbb\xbf").unwrap();
        assert_eq!(file_to_string(&file).unwrap(), "text\u{feff}");
        assert_eq!(read_to_string(&file).unwrap(), "text\u{feff}");
        assert_eq!(read(&file).unwrap().len(), 10);
        fs::write(&file, b"\xff\xfet\0").unwrap();
        let error = read_to_string(&file).unwrap_err().to_string();
        assert!(error.contains("UTF-16"), "{error}");
        fs::write(&file, "text").unwrap();
        for (path, problem) in [
            (fifo(dir.path()), "a FIFO, not a file"),
            (socket, "a socket, not a file"),
            (dir.path().to_owned(), "a folder, not a file"),
            ("/dev/zero".into(), "a device, not a file"),
        ] {
            assert_eq!(open_file(&path).unwrap_err().to_string(), problem);
        }
        let missing = open_file(&dir.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn entries_must_be_regular_files() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "text").unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        assert_eq!(
            open_untrusted_file(&link).unwrap_err().to_string(),
            "a link, not a file"
        );
        let fifo_error = open_untrusted_file(&fifo(&folder)).unwrap_err();
        assert_eq!(fifo_error.to_string(), "a FIFO, not a file");
        assert!(is_plain_file(&secret) && !is_plain_file(&link) && !is_plain_file(&folder));
        assert_eq!(untrusted_file_to_string(&secret, 4).unwrap(), "text");
        let long = untrusted_file_to_string(&secret, 3).unwrap_err();
        assert_eq!(long.to_string(), "it has more than 3 bytes");
    }

    #[test]
    fn folders_outside_are_not_below() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        assert_eq!(
            resolve_subfolder(&inside, "a/b").unwrap(),
            inside.join("a/b")
        );
        let absolute = outside.to_str().unwrap();
        for name in ["../outside", "a/../../outside", "link", absolute, "missing"] {
            assert!(resolve_subfolder(&inside, name).is_err(), "{name}");
        }
    }

    #[test]
    fn line_length_is_bounded() {
        let mut line = Vec::new();
        let mut from = &b"ab\n\nabc\nd"[..];
        let mut next = |from: &mut &[u8]| {
            let end = read_line(from, &mut line, 3);
            end.map(|end| (String::from_utf8(line.clone()).unwrap(), end))
        };
        for (text, end) in [
            ("ab", LineEnd::Newline),
            ("", LineEnd::Newline),
            ("abc", LineEnd::Newline),
            ("d", LineEnd::EndOfInput),
            ("", LineEnd::EndOfInput),
        ] {
            assert_eq!(next(&mut from).unwrap(), (text.to_owned(), end));
        }
        let error = next(&mut &b"abcd\n"[..]).unwrap_err();
        assert_eq!(error.to_string(), "a line of more than 3 bytes");
    }

    #[test]
    fn fifo_is_read_to_eof() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        let to = path.clone();
        let writer = thread::spawn(move || fs::write(to, "x".repeat(300_000)).unwrap());
        assert_eq!(read_to_string(&path).unwrap().len(), 300_000);
        writer.join().unwrap();
    }

    #[test]
    fn stalled_or_endless_input_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        let short = Duration::from_millis(20);
        let error = read_stream(|| File::open(path), "a FIFO", short, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let zero = || File::open("/dev/zero");
        let error = read_stream(zero, "a device", STREAM_IDLE_TIMEOUT, 3 << 20).unwrap_err();
        let expected = "it is a device, and did not end within 3 MiB";
        assert_eq!(error.to_string(), expected);
    }
}
