//! Listening on a Unix domain socket: its file is created, taken over if it is stale, and removed at the end.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use plimsoll_engine::transport::address::socket_address;
use plimsoll_model::plan::UnixSocket;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Socket, Type};

use super::peer::PeerAddress;

/// A socket's file. Removed when dropped, unless another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode number.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // If the file can't be removed, the next server takes it over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Opens a listening socket. The permissions of the file's folder and the umask decide who may connect.
///
/// # Errors
/// When the socket can't be created, another process listens on it, or the path is not a socket.
pub fn listen(at: &UnixSocket, backlog: u16) -> io::Result<(TcpListener, Option<SocketFile>)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let address = socket_address(at)?;
    match (socket.bind(&address), at) {
        (Err(e), UnixSocket::Path(path)) if e.kind() == io::ErrorKind::AddrInUse => {
            remove_stale_socket(at, path)?;
            socket.bind(&address)?;
        }
        (bound, _) => bound?,
    }
    let file = match at {
        UnixSocket::Path(path) => Some(SocketFile {
            path: std::path::absolute(path)?,
            identity: file_identity(path)?,
        }),
        UnixSocket::Abstract(_) => None,
    };
    socket.listen(backlog.into())?;
    // The socket is returned as a TCP listener, of which only the descriptor is used: see `accept`.
    Ok((socket.into(), file))
}

/// Removes the file of a socket that no process listens on any more, because its server was killed.
fn remove_stale_socket(at: &UnixSocket, path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match probe.connect(&socket_address(at)?) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Explains why a socket can't be listened on, and what to do about it.
pub fn explain_listen_error(at: &UnixSocket, error: &io::Error) -> String {
    let folder = match at {
        UnixSocket::Path(path) => path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty()),
        UnixSocket::Abstract(_) => None,
    };
    let folder = folder.unwrap_or(Path::new(".")).display();
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "a server listens on it; stop that one, or choose another path".to_owned()
        }
        io::ErrorKind::AlreadyExists => {
            "a file that is not a socket exists there; move it away, or choose another path"
                .to_owned()
        }
        io::ErrorKind::NotFound => {
            format!("there is no folder {folder}; create it, or choose another path")
        }
        io::ErrorKind::NotADirectory => {
            format!("{folder} is not a folder; choose another path")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!(
                "not permitted to make a file in {folder}; choose a folder that this user may write to"
            )
        }
        _ => format!("can't listen: {error}"),
    }
}

/// Accepts a connection from a listening socket of any address family. The standard library's own `accept` rejects
/// peers without a network address. The returned type works for all stream sockets, not only for TCP.
///
/// # Errors
/// Returns the errors of accept(2); `WouldBlock` if no connection is waiting.
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, PeerAddress)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (accepted, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((accepted.into(), PeerAddress(peer)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn only_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let at = UnixSocket::Path(path.clone());
        // The socket's file stays after it is closed.
        drop(UnixListener::bind(&path).unwrap());
        let (listener, file) = listen(&at, 8).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"x").unwrap();
        let (mut accepted, peer) = accept(&listener).unwrap();
        assert_eq!(peer.0, None);
        accepted.set_nonblocking(false).unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        assert_eq!(
            accept(&listener).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let second = listen(&at, 8).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop((file, listener));
        assert!(!path.exists(), "removed at the end");
        fs::write(&path, "text").unwrap();
        let taken = listen(&at, 8).unwrap_err();
        assert!(
            explain_listen_error(&at, &taken).contains("not a socket"),
            "{taken}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn unix_listen_error_names_folder() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path| {
            let at = UnixSocket::Path(path.into());
            explain_listen_error(&at, &listen(&at, 8).unwrap_err())
        };
        assert!(said(&dir.path().join("none/a.sock")).contains("there is no folder /"));
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(said(&file.join("a.sock")).contains("is not a folder"));
        assert!(said(dir.path()).contains("not a socket"));
        let denied = io::ErrorKind::PermissionDenied.into();
        let at = UnixSocket::Path("a.sock".into());
        assert!(explain_listen_error(&at, &denied).contains("make a file in .;"));
    }
}
