//! `openssl s_server` in the place of a file server of ours, so that a ladder prices the same link with
//! OpenSSL at the server.
//!
//! It serves one connection after another, a file on each. What it prints goes to a file, since a
//! pipe would have to be read while the load goes on.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use plimsoll_model::spec::{Secured, Spec, made_by_server};
use plimsoll_stack::certificates::CertificateSet;

use crate::child::Served;
use crate::failure::Failure;

/// How often its start is looked for, this far apart: for a minute, which is far more than it takes.
const MAX_START_POLLS: u32 = 12_000;
const START_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What a rung's link is to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked {
    /// By the names of the registry, which are OpenSSL's, too. Empty: its own.
    groups: Vec<String>,
    versions: Vec<String>,
    /// The file that is fetched, and its bytes.
    file: String,
    size: u64,
}

impl Asked {
    /// What the plan of a rung asks for. That it fetches such a file was checked.
    pub(super) fn of(spec: &Spec) -> Asked {
        let tls = spec.tls.clone().unwrap_or_default();
        let (path, _) = spec.file().unwrap_or_default();
        Asked {
            groups: tls.groups.unwrap_or_default(),
            versions: tls.versions.unwrap_or_default(),
            file: path.trim_start_matches("/bytes/").to_owned(),
            size: made_by_server(path).unwrap_or(0),
        }
    }

    /// The server, listening `at`, with its file in a folder of `dir`.
    pub(super) fn command(
        &self,
        mut command: Command,
        at: &str,
        set: &CertificateSet,
        secured: Secured,
        dir: &Path,
    ) -> Result<Command, Failure> {
        let site = dir.join("openssl");
        self.make_file(&site).map_err(|e| {
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
        if secured == Secured::Mutual {
            command.args(["-Verify", "10", "-verify_return_error", "-CAfile"]);
            command.arg(absolute(&set.ca_cert)?);
        }
        command.current_dir(site);
        Ok(command)
    }

    fn make_file(&self, site: &Path) -> io::Result<()> {
        let folder = site.join("bytes");
        fs::create_dir_all(&folder)?;
        File::create(folder.join(&self.file))?.set_len(self.size)
    }
}

/// The OpenSSL on PATH: its name and number.
///
/// # Errors
/// When there is none.
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

/// Starts the server, which writes to `log`; the process, and where it listens.
///
/// # Errors
/// When it does not start: with what it printed last.
pub(super) fn start(
    mut command: Command,
    log: &Path,
    spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> Result<(Served, String), Failure> {
    let failed = |e: io::Error| Failure::error(format_args!("ladder.library: openssl: {e}"));
    let out = File::create(log).map_err(failed)?;
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(failed)?)
        .stderr(out);
    let mut process = Served(spawn(&mut command).map_err(failed)?);
    let mut printed = String::new();
    for _ in 0..MAX_START_POLLS {
        printed = fs::read_to_string(log).unwrap_or_default();
        let address = printed
            .lines()
            .find_map(|line| line.strip_prefix("ACCEPT "));
        // The line is whole when its end is there.
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
        "OpenSSL 3.5 and newer know ML-KEM and ML-DSA: put such a one first on PATH, or leave those rungs out",
    ))
}
