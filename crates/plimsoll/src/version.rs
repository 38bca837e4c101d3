//! What `--version` prints. `build.rs` finds it out.

/// The version, where the binary comes from, and what it is made of. Libraries are those of the
/// lock file, which `cargo install` heeds with `--locked` only.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("VERSION_COMMIT"),
    "\nbuild: ",
    env!("VERSION_BUILD"),
    "\nfeatures: ",
    env!("VERSION_FEATURES"),
    "\nlocked libraries: ",
    env!("VERSION_LIBRARIES"),
);
