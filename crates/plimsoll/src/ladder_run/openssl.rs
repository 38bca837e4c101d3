//! Runs `openssl s_server` in place of Plimsoll's own file server, so that a ladder can compare both TLS libraries on
//! the same link.
//!
//! The server handles connections one after another, and sends one file per connection. Its output goes to a file,
//! because a pipe would have to be read during the load.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use plimsoll_model::spec::{RungSecurity, Spec, generated_file_size};
use plimsoll_stack::certificates::CertificatePaths;

use crate::failure::Failure;
use crate::system::child::ServerProcess;

/// Maximum number of polls for the server's address, [`START_POLL_INTERVAL`] apart: one minute in total, far longer
/// than a server needs to start.
const MAX_START_POLLS: u32 = 12_000;
const START_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The TLS parameters and the file that a rung's server needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpenSslOptions {
    /// Key-exchange groups by their IANA names, which OpenSSL uses too; empty for OpenSSL's defaults.
    groups: Vec<String>,
    versions: Vec<String>,
    /// Name of the served file, and its size in bytes.
    file: String,
    size: u64,
}

impl OpenSslOptions {
    /// Derives the options from the spec of a rung, which must fetch a file that the server generates.
    pub(super) fn from_spec(spec: &Spec) -> OpenSslOptions {
        let tls = spec.tls.clone().unwrap_or_default();
        let (path, _) = spec.fetched_file().unwrap_or_default();
        OpenSslOptions {
            groups: tls.groups.unwrap_or_default(),
            versions: tls.versions.unwrap_or_default(),
            file: path.trim_start_matches("/bytes/").to_owned(),
            size: generated_file_size(path).unwrap_or(0),
        }
    }

    /// Builds the command of a server that listens on `at` and serves its file from a subfolder of `dir`.
    pub(super) fn command(
        &self,
        mut command: Command,
        at: &str,
        set: &CertificatePaths,
        secured: RungSecurity,
        dir: &Path,
    ) -> Result<Command, Failure> {
        let site = dir.join("openssl");
        self.create_served_file(&site).map_err(|e| {
            Failure::error(format_args!(
                "can't make a file to serve in {}: {e}",
                site.display()
            ))
        })?;
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map_err(|e| Failure::error(format_args!("{}: {e}", path.display())))
        };
        let (cert, key) = (absolute(&set.server_cert)?, absolute(&set.server_key)?);
        command.args(["s_server", "-WWW", "-accept", at]);
        command.arg("-cert").arg(&cert).arg("-key").arg(key);
        command.arg("-cert_chain").arg(&cert);
        command.args(match self.versions.as_slice() {
            [one] if one == "1.2" => Some("-tls1_2"),
            [] | [_] => Some("-tls1_3"),
            _ => None,
        });
        if !self.groups.is_empty() {
            command.args(["-groups", &self.groups.join(":")]);
        }
        if secured == RungSecurity::Mutual {
            command.args(["-Verify", "10", "-verify_return_error", "-CAfile"]);
            command.arg(absolute(&set.ca_cert)?);
        }
        command.current_dir(site);
        Ok(command)
    }

    fn create_served_file(&self, site: &Path) -> io::Result<()> {
        let folder = site.join("bytes");
        fs::create_dir_all(&folder)?;
        File::create(folder.join(&self.file))?.set_len(self.size)
    }
}

/// Returns name and version of the program `openssl` on PATH.
///
/// # Errors
/// When there is no such program, or it does not print its version.
pub(super) fn version() -> Result<String, Failure> {
    let missing = |why: &dyn std::fmt::Display| {
        Failure::error_with_help(
            format_args!("ladder.library: can't run `openssl`: {why}"),
            "install OpenSSL, or leave \"openssl\" out",
        )
    };
    let output = Command::new("openssl").arg("version").output();
    let output = output.map_err(|e| missing(&e))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = printed.split_whitespace().take(2).collect();
    match (output.status.success(), words.as_slice()) {
        (true, [name, number]) => Ok(format!("{name} {number}")),
        _ => Err(missing(&"it does not print its version")),
    }
}

/// Starts the server with its output in `log`; returns the process and the address that it listens on.
///
/// # Errors
/// When the server does not start; the error quotes its last output line.
pub(super) fn start(
    mut command: Command,
    log: &Path,
    spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> Result<(ServerProcess, String), Failure> {
    let failed = |e: io::Error| Failure::error(format_args!("ladder.library: openssl: {e}"));
    let out = File::create(log).map_err(failed)?;
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(failed)?)
        .stderr(out);
    let mut process = ServerProcess(spawn(&mut command).map_err(failed)?);
    let mut printed = String::new();
    for _ in 0..MAX_START_POLLS {
        printed = fs::read_to_string(log).unwrap_or_default();
        let address = printed
            .lines()
            .find_map(|line| line.strip_prefix("ACCEPT "));
        // The log may end in a partly written line, so wait for a complete one.
        if let Some(address) = address.filter(|_| printed.ends_with('\n')) {
            return Ok((process, address.trim().to_owned()));
        }
        if process.0.try_wait().map_err(failed)?.is_some() {
            break;
        }
        thread::sleep(START_POLL_INTERVAL);
    }
    let last = printed.lines().rev().find(|line| !line.trim().is_empty());
    Err(Failure::error_with_help(
        format_args!(
            "ladder.library: `openssl s_server` did not start: {}",
            last.unwrap_or("it printed nothing")
        ),
        "ML-KEM and ML-DSA need OpenSSL 3.5 or newer: put one first on PATH, or leave those rungs out",
    ))
}
