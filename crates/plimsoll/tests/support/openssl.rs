//! OpenSSL's command, as a peer for tests.

use std::process::{Command, Stdio};

use super::{Place, Server};

/// `openssl` in the folder of `place`.
pub(crate) fn openssl(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(arguments).current_dir(place.path(""));
    command
}

/// `openssl s_client`, connecting to `server` by the name of the place's certificate and trusting its CA.
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

/// `openssl s_server` on a free port, with the certificate of the place.
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
