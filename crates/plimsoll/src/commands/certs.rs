//! `plimsoll certs`: makes a CA and certificates for tests.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_stack::certificates::{
    CertificateOptions, KeyAlgorithm, LeafCertificate, Validity, make_certificates,
};

use crate::failure::{Exit, Failure};
use crate::load::documents::JsonFlag;

/// Make a CA, a server certificate and a client certificate for tests.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: certificates for this machine and for api.test\n  \
    plimsoll certs certs --name api.test"
)]
pub(crate) struct CertsArguments {
    /// The folder for the six files; created if it is missing.
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// A host name or address that the server's certificate is for, besides localhost,
    /// 127.0.0.1 and ::1; repeatable.
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,

    /// Add N made-up names, for a large certificate; at most 2000.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    names: u32,

    /// The key algorithm: ed25519, ecdsa-p256, ecdsa-p384, rsa-2048, rsa-3072, rsa-4096, ml-dsa-44, ml-dsa-65 or
    /// ml-dsa-87.
    #[arg(long, default_value = "ecdsa-p256")]
    algorithm: KeyAlgorithm,

    /// The algorithm of the client's key [default: --algorithm].
    #[arg(long, value_name = "ALGORITHM")]
    client_algorithm: Option<KeyAlgorithm>,

    /// Number of intermediate CAs between the CA and the leaf certificates; server and client send the whole chain.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    intermediates: u32,

    /// Days for which the certificates are valid.
    #[arg(long, default_value_t = 365)]
    days: u32,

    /// Time for which the certificates are valid, in place of --days: "90s", "1h".
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, conflicts_with = "days")]
    valid_for: Option<Period>,

    /// Also write ca.crl with the lists of revoked certificates, one list per issuer.
    #[arg(long)]
    crl: bool,

    /// Revoke a certificate in ca.crl: server or client; repeatable.
    #[arg(long, value_name = "WHICH")]
    revoke: Vec<LeafCertificate>,

    /// Overwrite existing files.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    json: JsonFlag,
}

pub(crate) fn execute(arguments: &CertsArguments) -> Result<Exit, Failure> {
    let options = CertificateOptions {
        names: arguments.name.clone(),
        more_names: arguments.names,
        algorithm: arguments.algorithm,
        client_algorithm: arguments.client_algorithm,
        intermediates: arguments.intermediates,
        revoked: (arguments.crl || !arguments.revoke.is_empty()).then(|| arguments.revoke.clone()),
        validity: match arguments.valid_for {
            Some(time) => Validity::For(time.0),
            None => Validity::Days(arguments.days),
        },
        force: arguments.force,
    };
    let set = make_certificates(&arguments.dir, &options).map_err(Failure::error)?;
    let (crl, files) = (set.crl.display(), set.file_paths(&options));
    let files: Vec<String> = files.iter().map(|p| p.display().to_string()).collect();
    let list = format!("\n  revoked: --crl {crl}, --tls-client-crl {crl}");
    let list = options.revoked.is_some().then_some(list);
    arguments.json.print_result(
        &serde_json::json!({ "files": files }),
        format_args!(
            "certificates in {}\n  server: --tls-cert {} --tls-key {} [--tls-client-ca {ca}]\n  client: --ca {ca} [--cert {} --key {}]{}",
            arguments.dir.display(),
            set.server_cert.display(),
            set.server_key.display(),
            set.client_cert.display(),
            set.client_key.display(),
            list.unwrap_or_default(),
            ca = set.ca_cert.display(),
        ),
    )?;
    Ok(Exit::Done)
}
