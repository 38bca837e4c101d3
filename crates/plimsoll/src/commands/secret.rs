//! Reads the secret that signs session tokens, from files or variables.

use std::path::PathBuf;

use clap::Args;
use plimsoll_relays::token::MIN_SECRET_BYTES;

use crate::failure::{self, Failure};
use crate::settings::environment::Environment;

/// The secret that signs session tokens.
#[derive(Clone, Debug, Args)]
pub(super) struct SecretFlags {
    /// A file with the secret that signs session tokens, at least 32 bytes; given twice during a rotation: the new
    /// secret, then the previous one [default: the variables JWT_SECRET, JWT_SECRET_PREVIOUS].
    #[arg(long, value_name = "FILE")]
    jwt_secret_file: Vec<PathBuf>,
}

/// Action if no secret is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingSecretAction {
    Fails,
    /// Generates a random secret, which no other process needs, because backend and gateway run in this process.
    Random,
}

impl SecretFlags {
    /// Returns whether secrets come from files, which may change while the server runs.
    pub(super) fn uses_files(&self) -> bool {
        !self.jwt_secret_file.is_empty()
    }

    /// Returns at least one secret. The first signs tokens; all of them verify tokens.
    pub(super) fn read_secrets(
        &self,
        environment: &Environment,
        without: MissingSecretAction,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        if let Some(found) = environment.value_with_origin("JWT_ALGORITHM")
            && found.value != "HS256"
        {
            return Err(Failure::usage(
                format_args!("JWT_ALGORITHM: `{}` is not supported", found.value),
                "tokens are signed with HS256: set JWT_ALGORITHM=HS256, or leave it out",
            ));
        }
        let mut secrets = Vec::new();
        for path in &self.jwt_secret_file {
            let content = failure::read_named_file("--jwt-secret-file", path)?;
            let end = content.iter().rposition(|b| !b.is_ascii_whitespace());
            secrets.push((
                format!("--jwt-secret-file {}", path.display()),
                content[..end.map_or(0, |end| end + 1)].to_vec(),
            ));
        }
        if secrets.is_empty() {
            for name in ["JWT_SECRET", "JWT_SECRET_PREVIOUS"] {
                if let Some(found) = environment.value_with_origin(name) {
                    secrets.push((name.to_owned(), found.value.into_bytes()));
                }
            }
        }
        if secrets.is_empty() && without == MissingSecretAction::Random {
            let random = format!("{}{}", uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
            secrets.push(("random".to_owned(), random.into_bytes()));
        }
        if secrets.is_empty() {
            return Err(Failure::usage(
                "no secret for the sessions' tokens",
                "set JWT_SECRET, or give --jwt-secret-file FILE: the same for backends and gateways",
            ));
        }
        for (name, secret) in &secrets {
            if secret.len() < MIN_SECRET_BYTES {
                return Err(Failure::usage(
                    format_args!(
                        "{name}: the secret has {} bytes; HS256 needs at least {MIN_SECRET_BYTES}",
                        secret.len()
                    ),
                    "make one, for example: openssl rand -hex 32",
                ));
            }
        }
        Ok(secrets.into_iter().map(|(_, secret)| secret).collect())
    }
}
