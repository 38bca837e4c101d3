//! Raises this process's limit of file descriptors.

use plimsoll_engine::transport::descriptors::{DescriptorLimit, descriptor_limit};

use crate::failure::Failure;

/// Minimum limit of file descriptors: the number that a process needs before its first connection.
const MIN_OPEN_FILES: u64 = 32;

/// Raises the soft limit to the hard limit. It is not an error if the system refuses: code that later runs out of
/// descriptors reports that.
///
/// # Errors
/// When the limit is below [`MIN_OPEN_FILES`].
pub(crate) fn raise_limit() -> Result<(), Failure> {
    match DescriptorLimit::for_this_process() {
        Ok(limit) if limit.current != limit.maximum => {
            if let Err(e) = limit.raise() {
                tracing::debug!("the limit of open files stays at {}: {e}", limit.current);
            }
        }
        Ok(_) => {}
        Err(e) => tracing::debug!("the limit of open files is unknown: {e}"),
    }
    match descriptor_limit() {
        few @ ..MIN_OPEN_FILES => Err(Failure::usage(
            format_args!(
                "only {few} files may be open at once; plimsoll needs {MIN_OPEN_FILES} before its first connection"
            ),
            "raise the limit: `ulimit -n 1024`, or as far as `ulimit -Hn` says",
        )),
        _ => Ok(()),
    }
}
