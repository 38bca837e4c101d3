//! `plimsoll certs`: a CA and certificates for a test link.

use std::path::PathBuf;

use clap::Args;
use plimsoll_stack::certificates::{Algorithm, Options, Validity, make_certificates};

use crate::arguments::{Json, boolish};
use crate::console;
use crate::failure::{Exit, Failure};

/// Make a CA, a server certificate and a client certificate for tests.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: certificates for this machine and for api.test\n  \
    plimsoll certs certs --name api.test"
)]
pub(crate) struct Arguments {
    /// Where the six files go; made if it is missing.
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// A host name or address that the server's certificate is for, besides localhost,
    /// 127.0.0.1 and ::1; may be given again.
    #[arg(long, env = "PLIMSOLL_NAME", value_name = "NAME")]
    name: Vec<String>,

    /// The keys: ecdsa-p256, ecdsa-p384, rsa-2048, rsa-3072 or rsa-4096.
    #[arg(long, env = "PLIMSOLL_ALGORITHM", default_value = "ecdsa-p256")]
    algorithm: Algorithm,

    /// How many days they are valid.
    #[arg(long, env = "PLIMSOLL_DAYS", default_value_t = 365)]
    days: u32,

    /// Overwrite files that are there.
    #[arg(long, env = "PLIMSOLL_FORCE", value_parser = boolish())]
    force: bool,

    #[command(flatten)]
    json: Json,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    let options = Options {
        names: arguments.name.clone(),
        algorithm: arguments.algorithm,
        validity: Validity::Days(arguments.days),
        force: arguments.force,
    };
    let set = make_certificates(&arguments.dir, &options).map_err(Failure::error)?;
    if arguments.json.json {
        let files: Vec<_> = set
            .paths()
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        console::result(format_args!("{}\n", serde_json::json!({ "files": files })))?;
    } else {
        console::result(format_args!(
            "certificates in {}\n  server: --tls-cert {} --tls-key {} [--tls-client-ca {}]\n  client: --ca {} [--cert {} --key {}]\n",
            arguments.dir.display(),
            set.server_cert.display(),
            set.server_key.display(),
            set.ca_cert.display(),
            set.ca_cert.display(),
            set.client_cert.display(),
            set.client_key.display(),
        ))?;
    }
    Ok(Exit::Done)
}
