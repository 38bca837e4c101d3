//! What a sweep measures is files fetched: what its command prints of them.

use plimsoll_model::spec::Spec;

use crate::owned::Usage;

/// Help of the flag that names a server of the user's.
pub const TARGET_HELP: &str = "A server of your own, instead of the one that the plan \
    starts (https://HOST:PORT). It has to answer /bytes/N with N bytes";

/// # Errors
/// Where the calls of `spec` fetch no files. `kind`: what measures them.
pub fn check(spec: &Spec, kind: &str) -> Result<(), Usage> {
    match spec.file() {
        Some(_) => Ok(()),
        None => Err(Usage::new(
            format_args!("a {kind} is of files fetched over TLS: the plan has no [call.fetch]"),
            "write [call.fetch] and a target such as https://HOST:PORT; `plimsoll ladder` measures variants of other calls",
        )),
    }
}

/// The target is plaintext.
pub fn not_secured() -> Usage {
    Usage::new(
        "a sweep is of TLS links, and the target is plaintext",
        "write the target with https://; `plimsoll ladder` compares with plaintext",
    )
}
