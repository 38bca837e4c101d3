//! Measures two versions of a service side by side, as a ladder of two rungs (variants) whose servers are shell
//! commands.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::comparisons::track::{ERROR_PROBABILITY, TrackedVersion, VersionComparison};
use plimsoll_model::formats::redaction;
use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{RungTable, Spec};
use regex::Regex;

use super::commits::GitCommit;
use crate::failure::{Exit, Failure};
use crate::ladder_run::{
    self, LadderFlags, LadderRequest, ServiceCommand, ServiceComparison, ServiceProperties,
};
use crate::load::execution::save_failure;
use crate::load::process::ProcessContext;
use crate::settings::problems::PlanSource;

/// Maximum duration of a comparison's load if neither plan nor flag sets one.
pub(super) const DEFAULT_BUDGET: Duration = Duration::from_secs(180);

/// A version of the service that is ready to be started.
#[derive(Clone, Debug)]
pub(crate) struct PreparedVersion {
    pub(crate) version: TrackedVersion,
    /// The shell command that starts the server, with placeholders for its address.
    pub(crate) serve: String,
    /// The folder in which the command runs.
    pub(crate) folder: PathBuf,
}

impl PreparedVersion {
    /// Returns the version of a commit that was built by `build` in `folder`.
    pub(crate) fn from_commit(
        commit: &GitCommit,
        build: Option<&str>,
        serve: &str,
        folder: PathBuf,
    ) -> PreparedVersion {
        PreparedVersion {
            version: TrackedVersion {
                name: commit.name(),
                commit: Some(commit.id.clone()),
                subject: Some(commit.subject.clone()),
                dirty: commit.changes.is_some(),
                build: build.map(redact_command),
                serve: redact_command(serve),
            },
            serve: serve.to_owned(),
            folder,
        }
    }
}

/// Comparer of pairs of versions, with the settings that all comparisons of a command share.
pub(crate) struct VersionComparer<'a> {
    /// The load and the ladder's options. The target's address is filled in for each version.
    pub(crate) spec: Spec,
    pub(crate) source: PlanSource<'a>,
    /// The flags for reports, and `--dry-run`.
    pub(crate) flags: &'a LadderFlags,
    /// Maximum time from a server's start until it listens.
    pub(crate) start_timeout: Duration,
    pub(crate) process: &'a ProcessContext,
}

impl VersionComparer<'_> {
    /// Measures `old` and `new` side by side. Results are written to the existing folder `dir`, which the record names
    /// as `directory`. Confidence intervals have a joint error probability of `error_probability`. The load lasts at
    /// most as long as the budget, multiplied by the factor `longer`.
    ///
    /// # Errors
    /// When a server does not start, or the measurement fails.
    pub(crate) fn compare(
        &self,
        [old, new]: [&PreparedVersion; 2],
        (dir, directory): (&Path, &str),
        error_probability: f64,
        longer: u32,
    ) -> Result<(VersionComparison, LadderRecord), Failure> {
        let services = assign_free_addresses([old, new])?;
        let compared = ServiceComparison {
            dir: dir.to_owned(),
            services: services
                .map(|(version, at)| self.service_command(version, at))
                .into(),
            error_probability,
        };
        // Use default flags, because the user's flags have already been applied to `self.spec`.
        let flags = LadderFlags::default();
        let spec = self.ladder_spec(services, longer)?;
        let mut found = None;
        ladder_run::execute(&spec, &self.ladder_request(&flags, &compared), |mut run| {
            let mut measured = run.run();
            if self.process.stop.level() != StopUrgency::Run {
                // If the user interrupts the restart of a server, the ladder fails; record that as an interruption.
                run.record.interrupted = true;
                let saved = run.record.write(&run.dir);
                measured = saved.map_err(|e| save_failure(&e, &run.dir));
            }
            let ladder = run.record.clone();
            let comparison =
                VersionComparison::from_ladder(&ladder, directory.to_owned(), error_probability);
            found = Some((comparison, ladder));
            measured.map(|()| Exit::Done)
        })?;
        found.ok_or_else(|| Failure::error("nothing was measured"))
    }

    /// Prints what would be measured, for `--dry-run`.
    ///
    /// # Errors
    /// When the plan or a flag is invalid.
    pub(crate) fn print_outline(&self, [old, new]: [&PreparedVersion; 2]) -> Result<Exit, Failure> {
        let services = assign_free_addresses([old, new])?;
        let compared = ServiceComparison {
            dir: PathBuf::new(),
            services: services
                .map(|(version, at)| self.service_command(version, at))
                .into(),
            error_probability: ERROR_PROBABILITY,
        };
        let spec = self.ladder_spec(services, 1)?;
        ladder_run::execute(&spec, &self.ladder_request(self.flags, &compared), |_| {
            Ok(Exit::Done)
        })
    }

    fn ladder_request<'a>(
        &'a self,
        flags: &'a LadderFlags,
        compared: &'a ServiceComparison,
    ) -> LadderRequest<'a> {
        LadderRequest {
            kind: "ladder",
            flags,
            source: &self.source,
            process: self.process,
            shard_context: None,
            services: Some(compared),
        }
    }

    fn service_command(&self, version: &PreparedVersion, address: SocketAddr) -> ServiceCommand {
        ServiceCommand {
            name: version.version.name.clone(),
            command: fill_in_address(&version.serve, address),
            folder: version.folder.clone(),
            address,
            start_timeout: self.start_timeout,
            known: ServiceProperties::default(),
        }
    }

    /// Returns the spec of the ladder, with a rung for each version. Its load lasts at most as long as the budget,
    /// multiplied by the factor `longer`.
    fn ladder_spec(
        &self,
        services: [(&PreparedVersion, SocketAddr); 2],
        longer: u32,
    ) -> Result<Spec, Failure> {
        let url = self.spec.target.as_deref().unwrap_or_default();
        let rung = |(version, address): (&PreparedVersion, SocketAddr)| {
            Ok(RungTable {
                name: Some(version.version.name.clone()),
                target: Some(url_with_address(url, address)?),
                ..RungTable::default()
            })
        };
        let rungs = services
            .into_iter()
            .map(rung)
            .collect::<Result<Vec<_>, Failure>>()?;
        let mut spec = self.spec.clone();
        spec.target.clone_from(&rungs[0].target);
        let ladder = spec.ladder.get_or_insert_default();
        let budget = ladder.budget.map_or(DEFAULT_BUDGET, |budget| budget.0);
        ladder.budget = Some(Period(budget * longer));
        ladder.rungs = Some(rungs);
        Ok(spec)
    }
}

/// Assigns an address with a free port to each version.
fn assign_free_addresses(
    versions: [&PreparedVersion; 2],
) -> Result<[(&PreparedVersion, SocketAddr); 2], Failure> {
    let failed = |e| Failure::error(format_args!("no port is free: {e}"));
    // Bind both ports before closing either of them, so that they differ.
    let listeners = [
        bind_free_port().map_err(failed)?,
        bind_free_port().map_err(failed)?,
    ];
    let at = |listener: &TcpListener| listener.local_addr().map_err(failed);
    let addresses = [at(&listeners[0])?, at(&listeners[1])?];
    Ok([(versions[0], addresses[0]), (versions[1], addresses[1])])
}

fn bind_free_port() -> io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// Replaces `{address}` and `{port}` in a command or URL.
fn fill_in_address(text: &str, address: SocketAddr) -> String {
    text.replace("{address}", &address.to_string())
        .replace("{port}", &address.port().to_string())
}

/// Returns the URL with a version's address in place of the placeholders or, if it has none, of its host and port.
///
/// # Errors
/// When `url` is not a URL.
fn url_with_address(url: &str, address: SocketAddr) -> Result<String, Failure> {
    let filled = fill_in_address(url, address);
    if filled != url {
        return Ok(filled);
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(Failure::usage(
            format_args!("the target `{url}` is not a URL with a host and a port"),
            "write {address} in place of host and port, after the scheme",
        ));
    };
    let path = rest.find(['/', '?']).map_or("", |at| &rest[at..]);
    Ok(format!("{scheme}://{address}{path}"))
}

/// Pattern of names of variables, flags and fields that may contain secrets.
const SECRET_NAME_PATTERN: &str =
    r"[\w-]*(?:pass|pwd|secret|token|key|credential|auth|jwt|session|cookie|signature)[\w-]*";
/// Pattern of a shell word, including its quotes.
const SHELL_WORD_PATTERN: &str = r#"(?:\\.|\$?'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\])+"#;

/// Returns a command with its secrets replaced by stars: values of variables, flags and fields whose names match
/// [`SECRET_NAME_PATTERN`], and secrets in URLs.
pub(crate) fn redact_command(command: &str) -> String {
    static SECRET_PATTERNS: LazyLock<Option<Vec<Regex>>> = LazyLock::new(|| {
        let patterns = [
            r#"(authorization\s*[:=]\s*)[^"']*"#.to_owned(),
            // Matches quoted assignments, in which the quote is before the name: `-e "PASSWORD=a b"`.
            format!(r#"(["']{SECRET_NAME_PATTERN}\s*[:=]\s*)[^"']+"#),
            format!(r"((?:^|\s)--?{SECRET_NAME_PATTERN}\s+){SHELL_WORD_PATTERN}"),
            format!(r#"({SECRET_NAME_PATTERN}["']?\s*[:=]\s*){SHELL_WORD_PATTERN}"#),
        ];
        let compiled = patterns
            .iter()
            .map(|text| Regex::new(&format!("(?i){text}")));
        compiled.collect::<Result<_, _>>().ok()
    });
    let Some(secrets) = SECRET_PATTERNS.as_ref() else {
        // The patterns are constants that compile. If one did not, show no part of the command.
        return "***".to_owned();
    };
    let masked = redaction::mask_urls(command).into_owned();
    secrets.iter().fold(masked, |text, secret| {
        secret.replace_all(&text, "${1}***").into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_replaces_placeholders_or_host() {
        let at: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        for (url, expected) in [
            ("abc://{address}/a?b=1", "abc://127.0.0.1:4711/a?b=1"),
            ("abc://localhost:{port}", "abc://localhost:4711"),
            ("abc://svc:8080/a/b", "abc://127.0.0.1:4711/a/b"),
            ("abc://svc:50051", "abc://127.0.0.1:4711"),
        ] {
            assert_eq!(url_with_address(url, at).unwrap(), expected, "{url}");
        }
        let wrong = url_with_address("svc:8080", at).unwrap_err();
        assert!(wrong.to_string().contains("svc:8080"), "{wrong}");
    }

    #[test]
    fn secrets_of_commands_are_masked() {
        for (command, expected) in [
            ("./svc --port {port}", "./svc --port {port}"),
            ("API_TOKEN=abc ./svc", "API_TOKEN=*** ./svc"),
            ("DB_PASSWORD='a b' ./svc", "DB_PASSWORD=*** ./svc"),
            (
                "./svc --db-password hunter2 -v",
                "./svc --db-password *** -v",
            ),
            (
                "curl -H 'Authorization: Token xyz'",
                "curl -H 'Authorization: ***'",
            ),
            ("STRIPE_KEY=ab JWT=cd ./svc", "STRIPE_KEY=*** JWT=*** ./svc"),
            ("DB_PASS=ab\\ cd ./svc", "DB_PASS=*** ./svc"),
            (
                "docker run -e \"DB_PASSWORD=a b c\" svc",
                "docker run -e \"DB_PASSWORD=***\" svc",
            ),
            ("./svc --password=$'ab' -v", "./svc --password=*** -v"),
            ("./svc '{\"password\":\"x\"}'", "./svc '{\"password\":***'"),
            ("./token-server --port 1", "./token-server --port 1"),
        ] {
            assert_eq!(redact_command(command), expected);
        }
        assert!(!redact_command("./svc redis://user:hunter2@h/").contains("hunter2"));
    }
}
