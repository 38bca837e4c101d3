//! The text of `--version`, from variables that `build.rs` sets.

/// Version, build and library versions. The library versions are those in the lock file, which `cargo install` uses
/// only with `--locked`.
pub(crate) const LONG_VERSION: &str = concat!(
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

/// Returns names and versions of the TLS library, which client and servers use, and of its cryptographic backend.
pub(crate) fn tls() -> String {
    let libraries = env!("VERSION_LIBRARIES").split(", ");
    let mut named = libraries.filter(|l| l.starts_with("rustls ") || l.starts_with("aws-lc-rs "));
    match (named.next(), named.next()) {
        (Some(cryptography), Some(library)) => format!("{library} with {cryptography}"),
        _ => "rustls with aws-lc-rs".to_owned(),
    }
}
