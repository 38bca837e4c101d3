//! The servers that a climb starts for its rungs: one for each way in which rungs are
//! secured and each network they are reached through.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use plimsoll_model::ladder::Skipped;
use plimsoll_model::spec::{Network, RungSpec, Secured, WatchSpec};
use plimsoll_stack::certificates::{CertificateSet, Options, make_certificates};
use plimsoll_stack::namespace::Namespace;

use crate::failure::Failure;

/// What runs for a climb. Dropped, it ends: the servers, then their namespace.
#[derive(Default)]
pub(super) struct Servers {
    running: Vec<Server>,
    namespace: Option<Namespace>,
    /// Rungs that can't be measured here.
    pub(super) skipped: Vec<Skipped>,
}

/// A server of ours, ended when it is dropped.
struct Server {
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the servers of `plimsoll serve WORDS` that the rungs need, and points the rungs at
/// them. Rungs whose network can't be made are taken out.
pub(super) fn start(
    words: &[String],
    rungs: &mut Vec<RungSpec>,
    dir: &Path,
) -> Result<Servers, Failure> {
    let mut servers = Servers::default();
    servers.make_networks(rungs)?;
    let mut set: Option<CertificateSet> = None;
    let mut started: BTreeMap<(Network, Secured), (String, u32)> = BTreeMap::new();
    for rung in rungs {
        if rung.secured != Secured::Off && set.is_none() {
            let inside = servers.namespace.as_ref();
            let options = Options {
                names: inside
                    .map(|n| n.address().to_string())
                    .into_iter()
                    .collect(),
                ..Options::default()
            };
            set = Some(make_certificates(&dir.join("certs"), &options).map_err(Failure::error)?);
        }
        let key = (rung.network, rung.secured);
        let (address, pid) = match started.get(&key) {
            Some(known) => known.clone(),
            None => {
                let new = servers.add(words, rung, set.as_ref())?;
                started.insert(key, new.clone());
                new
            }
        };
        let scheme = rung.spec.call.scheme(rung.secured != Secured::Off);
        rung.spec.target = Some(format!("{scheme}://{address}"));
        // Who listens in another network can't be seen from here.
        rung.spec.watch = Some(WatchSpec {
            pid: Some(pid),
            ..WatchSpec::default()
        });
        if let (Some(set), Secured::Server | Secured::Mutual) = (&set, rung.secured) {
            let tls = rung.spec.tls.get_or_insert_default();
            tls.ca = Some(set.ca_cert.clone());
            let mutual = rung.secured == Secured::Mutual;
            tls.cert = mutual.then(|| set.client_cert.clone());
            tls.key = mutual.then(|| set.client_key.clone());
        }
    }
    Ok(servers)
}

impl Servers {
    /// Makes the networks that rungs are measured through.
    fn make_networks(&mut self, rungs: &mut Vec<RungSpec>) -> Result<(), Failure> {
        let is_inside = |rung: &RungSpec| rung.network == Network::Namespaces;
        if !rungs.iter().any(is_inside) {
            return Ok(());
        }
        match Namespace::make() {
            Ok(namespace) => {
                self.namespace = Some(namespace);
                // A load takes more cores for a target elsewhere; here all are on this machine.
                let cores = thread::available_parallelism().map_or(1, |n| n.get());
                let workers = u16::try_from(cores / 2).unwrap_or(u16::MAX).max(1);
                for rung in rungs {
                    rung.spec.load.workers.get_or_insert(workers);
                }
                Ok(())
            }
            Err(error) => {
                let reason = format!("no network namespace: {error}");
                let (out, left) = std::mem::take(rungs).into_iter().partition(is_inside);
                *rungs = left;
                if rungs.is_empty() {
                    return Err(Failure::error_with_help(
                        format_args!("ladder.network: {reason}"),
                        "run it as a user who may administer the network, or measure \"localhost\" as well",
                    ));
                }
                let out: Vec<RungSpec> = out;
                self.skipped.extend(out.into_iter().map(|rung| Skipped {
                    name: rung.name,
                    reason: reason.clone(),
                }));
                Ok(())
            }
        }
    }

    /// Starts one; its address and process.
    fn add(
        &mut self,
        words: &[String],
        rung: &RungSpec,
        set: Option<&CertificateSet>,
    ) -> Result<(String, u32), Failure> {
        let program = std::env::current_exe().map_err(|e| {
            Failure::error(format_args!(
                "can't find this program to start a server: {e}"
            ))
        })?;
        let (mut command, host) = match (&self.namespace, rung.network) {
            (Some(namespace), Network::Namespaces) => {
                (namespace.command(program), namespace.address().to_string())
            }
            _ => (Command::new(program), "127.0.0.1".to_owned()),
        };
        command
            .arg("serve")
            .args(words)
            .args(["--listen", &format!("{host}:0"), "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let (Some(set), Secured::Server | Secured::Mutual) = (set, rung.secured) {
            command.arg("--tls-cert").arg(&set.server_cert);
            command.arg("--tls-key").arg(&set.server_key);
            if rung.secured == Secured::Mutual {
                command.arg("--tls-client-ca").arg(&set.ca_cert);
            }
        }
        let child = command
            .spawn()
            .map_err(|e| Failure::error(format_args!("ladder.serve: can't start a server: {e}")))?;
        let mut server = Server { child };
        let mut line = String::new();
        if let Some(stdout) = server.child.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(|e| Failure::error(format_args!("ladder.serve: {e}")))?;
        }
        let said: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let address = said
            .as_ref()
            .and_then(|said| said["address"].as_str())
            .ok_or_else(|| {
                Failure::usage(
                    format_args!("ladder.serve: `plimsoll serve {}` did not start", words.join(" ")),
                    "its message is above; write, for example, serve = [\"score\", \"--delay\", \"5ms\"]",
                )
            })?;
        let pid = server.child.id();
        self.running.push(server);
        Ok((address.to_owned(), pid))
    }
}
