//! OpenSSL's command, as a peer of tests.

use std::process::{Command, Stdio};

use super::{Place, Server};

/// Returns `openssl`, run in the folder of `place`.
pub(crate) fn openssl(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(arguments).current_dir(place.path(""));
    command
}

/// Returns `openssl s_client`, which connects to `server` by the name in the place's certificate
/// and trusts its CA.
pub(crate) fn s_client(place: &Place, server: &Server, flags: &[&str]) -> Command {
    let address = server.address();
    let fixed = [
        "s_client",
        "-connect",
        &address,
        "-servername",
        "localhost",
        "-CAfile",
        "certs/ca.crt",
    ];
    openssl(place, &[&fixed, flags].concat())
}

/// Starts `openssl s_server` on a free port with the certificate of the place.
pub(crate) fn s_server(place: &Place, flags: &[&str]) -> Server {
    let fixed = [
        "s_server",
        "-accept",
        "127.0.0.1:0",
        "-cert",
        "certs/server.crt",
        "-key",
        "certs/server.key",
    ];
    Server::start(openssl(place, &[&fixed, flags].concat()).stderr(Stdio::null()))
}
