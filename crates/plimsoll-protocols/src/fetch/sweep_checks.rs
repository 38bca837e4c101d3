//! Texts and checks of sweeps, which fetch files over TLS in many configurations of the connection.

use plimsoll_model::spec::Spec;

use crate::interface::protocol_module::UsageError;

/// The help of the flag that names the user's own server.
pub const TARGET_HELP: &str = "A server of your own, instead of the one that the plan \
    starts (https://HOST:PORT). It has to answer /bytes/N with N bytes";

/// Checks that the calls of `spec` fetch files. `kind` is the kind of measurement, for the message.
///
/// # Errors
/// When the calls of `spec` fetch no files.
pub fn check_fetches_files(spec: &Spec, kind: &str) -> Result<(), UsageError> {
    match spec.fetched_file() {
        Some(_) => Ok(()),
        None => Err(UsageError::new(
            format_args!("a {kind} fetches files over TLS, but the plan has no [call.fetch]"),
            "write [call.fetch] and a target such as https://HOST:PORT; `plimsoll ladder` measures variants of other calls",
        )),
    }
}

/// Returns the error for a plaintext target.
pub fn plaintext_target_error() -> UsageError {
    UsageError::new(
        "a sweep measures TLS connections, but the target is plaintext",
        "write the target with https://; `plimsoll ladder` compares with plaintext",
    )
}
