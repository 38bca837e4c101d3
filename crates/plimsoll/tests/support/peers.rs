//! Third-party programs that tests run against, installed by `make setup`. If one is missing a test
//! fails and says so: a skipped test proves nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{MAX_WAIT, Place, Server, output, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a file that `make setup` creates.
#[track_caller]
pub(crate) fn peer(path: &str) -> PathBuf {
    let path = root().join(".peers").join(path);
    assert!(
        path.exists(),
        "{} is missing: run `make setup`, which installs the peers that these tests talk to",
        path.display()
    );
    path
}

/// Returns a program that `make setup` installs.
#[track_caller]
pub(crate) fn tool(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    assert!(
        std::env::split_paths(&path).any(|dir| dir.join(name).exists()),
        "{name} is missing: run `make setup`, which installs the peers that these tests talk to"
    );
    Command::new(name)
}

/// Starts Go's own TLS server with the certificate of the place.
pub(crate) fn go_tls(place: &Place, flags: &[&str]) -> Server {
    let mut command = Command::new(peer("bin/go-tls"));
    command
        .args(["-cert", "certs/server.crt", "-key", "certs/server.key"])
        .args(flags)
        .current_dir(place.path(""));
    Server::start(&mut command)
}

/// Returns a script of `tests/peers` in the environment that has grpcio.
#[track_caller]
pub(crate) fn python(place: &Place, script: &str) -> Command {
    peer("generated");
    let mut command = Command::new(peer("venv/bin/python"));
    command
        .arg(root().join("tests/peers").join(script))
        .current_dir(place.path(""));
    command
}

#[track_caller]
pub(crate) fn run_successfully(command: &mut Command) -> Output {
    let output = output(command, MAX_WAIT);
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}
