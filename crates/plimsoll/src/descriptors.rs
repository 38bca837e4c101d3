//! File descriptors: as many as the system allows this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// What a process needs before its first connection.
const FEWEST: u64 = 32;

/// Raises the soft limit to the hard one. Where that is refused, whoever needs more
/// descriptors than there are says so.
///
/// # Errors
/// When there are too few for anything.
pub(crate) fn raise_limit() -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!("the limit of open files stays at {:?}: {e}", limit.current);
        }
    }
    match self::limit() {
        few @ ..FEWEST => Err(Failure::usage(
            format_args!(
                "{few} files may be open at once, and {FEWEST} are needed before the first connection"
            ),
            "raise the limit: `ulimit -n 1024`, or as far as `ulimit -Hn` says",
        )),
        _ => Ok(()),
    }
}

/// What this process may have.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
