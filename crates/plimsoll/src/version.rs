//! What `--version` prints. `build.rs` finds it out.

/// The version, where the binary comes from, and what it is made of. Libraries are those of the
/// lock file, which `cargo install` heeds with `--locked` only.
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

/// The TLS library of both ends, and whose cryptography it uses, with their versions.
pub(crate) fn tls() -> String {
    let libraries = env!("VERSION_LIBRARIES").split(", ");
    let mut named = libraries.filter(|l| l.starts_with("rustls ") || l.starts_with("aws-lc-rs "));
    match (named.next(), named.next()) {
        (Some(cryptography), Some(library)) => format!("{library} with {cryptography}"),
        _ => "rustls with aws-lc-rs".to_owned(),
    }
}
