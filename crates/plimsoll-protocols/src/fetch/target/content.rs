//! What a path means to the file server: bytes made on the fly, or a file of the folder.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use plimsoll_engine::tls::files::Named;
use plimsoll_model::input;
use plimsoll_model::units::Size;

use crate::hex::unescaped;
use crate::serving::ServeError;

/// Bytes read, sealed and written at a time.
pub(super) const BLOCK: usize = 256 * 1024;

/// Made-up bodies are cut from this, again and again.
static MADE: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b'x'; BLOCK]);

/// A body of known length, a block at a time.
pub(super) struct Body {
    left: u64,
    /// And its block; `None`: the body is made up.
    file: Option<(File, Vec<u8>)>,
}

impl Body {
    pub(super) fn made(length: u64) -> Body {
        Body {
            left: length,
            file: None,
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.left
    }

    /// The next bytes, at most `most`; none: the body is over.
    ///
    /// # Errors
    /// When a file can't be read, or has become shorter than it was.
    pub(super) fn next(&mut self, most: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.left).unwrap_or(BLOCK);
        let n = most.min(BLOCK).min(left);
        self.left -= n as u64;
        let Some((file, block)) = &mut self.file else {
            return Ok(&MADE[..n]);
        };
        block.resize(n, 0);
        // Read where it stands: what is served is in the page cache after the first time.
        file.read_exact(block)?;
        Ok(block)
    }
}

/// The folder that is served.
#[derive(Debug)]
pub(super) struct Content {
    root: Option<PathBuf>,
}

impl Content {
    pub(super) fn new(root: Option<&Path>) -> Result<Content, ServeError> {
        let bad = |path: &Path, problem: String| {
            ServeError::File(Named("served folder", path).bad(problem))
        };
        let root = match root {
            None => None,
            Some(path) => {
                let whole = path.canonicalize().map_err(|e| bad(path, e.to_string()))?;
                if !whole.is_dir() {
                    return Err(bad(path, "not a folder".to_owned()));
                }
                Some(whole)
            }
        };
        Ok(Content { root })
    }

    /// The body that `path` names; `None`: there is no such thing here.
    pub(super) fn find(&self, path: &str) -> Option<Body> {
        let path = path.split(['?', '#']).next().unwrap_or(path);
        if let Some(size) = path.strip_prefix("/bytes/") {
            let bytes = size
                .parse::<u64>()
                .ok()
                .or_else(|| size.parse::<Size>().ok().map(|size| size.0))?;
            return Some(Body::made(bytes));
        }
        let name = String::from_utf8(unescaped(path.strip_prefix('/')?.as_bytes())).ok()?;
        let inside = Path::new(&name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        // Links out of the folder lead nowhere either.
        let root = self.root.as_ref()?;
        let whole = root.join(&name).canonicalize().ok()?;
        if !inside || !whole.starts_with(root) {
            return None;
        }
        // Whoever asks for a FIFO must not stop the others.
        let file = input::open_file(&whole).ok()?;
        Some(Body {
            left: file.metadata().ok()?.len(),
            file: Some((file, Vec::new())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_bodies_have_their_exact_size() {
        let content = Content::new(None).unwrap();
        for (path, size) in [
            ("/bytes/0", 0),
            ("/bytes/1000001", 1_000_001),
            ("/bytes/1MiB?x", 1 << 20),
        ] {
            let mut body = content.find(path).expect(path);
            assert_eq!(body.length(), size, "{path}");
            let mut seen = 0;
            while let n @ 1.. = body.next(usize::MAX).unwrap().len() {
                seen += n as u64;
            }
            assert_eq!(seen, size, "{path}");
        }
        for path in ["/bytes/", "/bytes/1XB", "/bytes/-1", "/other", "x"] {
            assert!(content.find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn only_files_below_root_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("sub/a b"), "12345").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), root.join("link")).unwrap();
        let fifo = std::process::Command::new("mkfifo")
            .arg(root.join("fifo"))
            .status();
        assert!(fifo.unwrap().success());
        let _listening = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let content = Content::new(Some(&root)).unwrap();
        let mut body = content.find("/sub/a%20b").unwrap();
        assert_eq!(body.length(), 5);
        assert_eq!(body.next(3).unwrap(), b"123");
        assert_eq!(body.next(3).unwrap(), b"45");
        assert_eq!(body.next(3).unwrap(), b"");
        for path in [
            "/../secret",
            "/sub/../../secret",
            "/%2e%2e/secret",
            "/link",
            "/fifo",
            "/socket",
            "/sub",
            "/",
            "//etc/passwd",
            "/%zz",
        ] {
            assert!(content.find(path).is_none(), "{path}");
        }
        let error = Content::new(Some(&dir.path().join("secret"))).unwrap_err();
        assert!(error.to_string().ends_with("not a folder"), "{error}");
    }
}
