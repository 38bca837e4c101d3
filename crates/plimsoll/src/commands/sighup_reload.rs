//! Reloads a server's certificates and secrets on SIGHUP.
//!
//! If a file is unusable, that is reported and the server keeps the previous one. Secrets from environment variables
//! are not reloaded, because a process's environment does not change.

use plimsoll_relays::token::TokenKeys;
use plimsoll_serving::CertificateRenewal;

use super::secret::{MissingSecretAction, SecretFlags};
use crate::failure::Failure;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::system::stopping;

/// Installs the SIGHUP handler.
///
/// # Errors
/// When the handler can't be installed.
pub(super) fn reload_at_hangup(
    secret: &SecretFlags,
    environment: &Environment,
    keys: &TokenKeys,
    renewals: Vec<CertificateRenewal>,
) -> Result<(), Failure> {
    let (secret, environment, keys) = (secret.clone(), environment.clone(), keys.clone());
    stopping::on_hangup(move || {
        let certificates = renewals
            .iter()
            .try_for_each(|renewal| renewal.reload_files().map_err(Failure::error));
        let secrets = if secret.uses_files() {
            secret
                .read_secrets(&environment, MissingSecretAction::Fails)
                .and_then(|secrets| keys.replace(&secrets).map_err(Failure::error))
        } else {
            Ok(())
        };
        for (what, renewed) in [("certificates", certificates), ("secrets", secrets)] {
            match renewed {
                Ok(()) => console::print_notice(format_args!("{what}: reloaded")),
                Err(e) => console::print_notice(format_args!(
                    "{what}: {e}; the previous ones stay in use"
                )),
            }
        }
    })
}
