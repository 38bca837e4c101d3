//! The address of a target that listens on a Unix domain socket.

use std::fmt;
use std::path::PathBuf;

/// A Unix domain socket (unix(7)), in the syntax of gRPC's name resolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UnixSocket {
    /// A file.
    Path(PathBuf),
    /// A name in Linux's abstract namespace, which is outside the file system.
    Abstract(String),
}

impl UnixSocket {
    /// The longest path or abstract name in bytes: `sun_path` without its terminating zero.
    pub const MAX_NAME_BYTES: usize = 107;

    /// Parses `unix:PATH`, `unix:///PATH` or `unix-abstract:NAME`; `None`: the text is not the name of a Unix socket.
    ///
    /// # Errors
    /// When the path or the name is not valid.
    pub fn parse(text: &str) -> Option<Result<UnixSocket, String>> {
        let (scheme, rest) = text.split_once(':')?;
        let is_abstract = match scheme {
            "unix" => false,
            "unix-abstract" => true,
            _ => return None,
        };
        let name = match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') && !is_abstract => path,
            Some(_) => {
                return Some(Err(format!(
                    "`{text}`: write unix:/PATH or unix:///PATH, or unix-abstract:NAME for a socket without a file"
                )));
            }
            None => rest,
        };
        Some(match name.len() {
            0 => Err(format!("`{text}` has no socket path: write unix:/PATH")),
            n if n > UnixSocket::MAX_NAME_BYTES => Err(format!(
                "`{text}`: a socket path can have {} bytes at most, and this one has {n}: use a shorter one, or a relative one",
                UnixSocket::MAX_NAME_BYTES
            )),
            _ if name.contains('\0') => Err(format!("{text:?} contains a zero byte")),
            _ if is_abstract => Ok(UnixSocket::Abstract(name.to_owned())),
            _ => Ok(UnixSocket::Path(name.into())),
        })
    }
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnixSocket::Path(path) => write!(f, "unix:{}", path.display()),
            UnixSocket::Abstract(name) => write!(f, "unix-abstract:{name}"),
        }
    }
}
