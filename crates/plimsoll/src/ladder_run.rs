//! Measures variants of one plan, called rungs, against each other. The commands `ladder`, `sweep` and `fetch --mode
//! both` call [`execute`].
//!
//! Rungs whose servers can all run at once are interleaved in batches of tens of calls ([`Interleaving`]), with one run
//! per replicate. All other rungs, and rungs whose load is split over several machines, are measured in rounds of
//! slices, which are short runs of one rung. Each round measures every rung once, in random order ([`slices`]). Servers
//! that the ladder starts are child processes of this program, so that the CPU time of client and server is measured
//! separately; they are stopped when the ladder ends.

mod crypto_costs;
mod extra_measurements;
mod flags;
mod interleaving;
mod openssl;
mod outline;
mod replicates;
mod routes;
mod rung_proxies;
mod servers;
mod services;
mod sidecars;
mod slices;
mod testbed;
mod time_slots;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_model::Plan;
use plimsoll_model::comparisons::ladder::batches::RungMeasurement;
use plimsoll_model::comparisons::ladder::{
    ExtraMeasurement, LadderMetric, LadderRecord, Rung, SkippedRung, SliceResult, SliceThroughput,
};
use plimsoll_model::plan::{ChainCheck, ServerTrust};
use plimsoll_model::records::record::TimeHistogram;
use plimsoll_model::runs::run::{CommonConditions, Run, SCHEMA_VERSION};
use plimsoll_model::spec::{LadderSpec, RungSecurity, RungSpec, Spec};
use plimsoll_report::quantity::time;
use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Failure};
use crate::load::execution::{self, save_failure};
use crate::load::planning;
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::settings::problems::PlanSource;
use crate::shards::{ShardContext, ShardGroup};
use crate::system::version;

pub(crate) use flags::LadderFlags;
use interleaving::Interleaving;
use outline::LadderOutline;
pub(crate) use routes::{ProxyTask, example_configuration};
use servers::{RungServers, ServerSharing};
pub(crate) use services::{ServiceCommand, ServiceComparison, ServiceProperties};
use slices::SliceRounds;
use testbed::Testbed;

/// [`LadderRequest::kind`] of the command `ladder`. Only this command compares its rungs with each other.
const LADDER_KIND: &str = "ladder";

/// Length of a slice when neither plan nor flag sets one.
const DEFAULT_SLICE: Duration = Duration::from_secs(2);

/// A ladder or sweep, as requested on the command line.
pub(crate) struct LadderRequest<'a> {
    /// "ladder", "sweep" or "both"; also the suffix of the run directory's name.
    pub(crate) kind: &'static str,
    pub(crate) flags: &'a LadderFlags,
    pub(crate) source: &'a PlanSource<'a>,
    pub(crate) process: &'a ProcessContext,
    /// This shard's context; `None` if the load is not split over several machines.
    pub(crate) shard_context: Option<&'a ShardContext>,
    /// The two services that `track` compares, one rung each; `None` for other commands.
    pub(crate) services: Option<&'a ServiceComparison>,
}

impl LadderRequest<'_> {
    /// Returns whether the load is split over several machines (shards).
    fn is_sharded(&self) -> bool {
        self.flags.shards.are_requested()
    }

    /// Returns whether the ladder starts its servers itself.
    fn starts_servers(&self, options: &LadderSpec) -> bool {
        options.serve.is_some() || self.services.is_some()
    }

    /// Returns the ladder's directory; `name` is the plan's name.
    fn directory(&self, name: &str) -> PathBuf {
        let new = || {
            execution::dir_or_default(self.flags.out.as_deref(), &format!("{name} {}", self.kind))
        };
        self.services
            .map_or_else(new, |compared| compared.dir.clone())
    }

    fn resolve_plan(&self, spec: &Spec) -> Result<Plan, Failure> {
        planning::resolve_plan(spec, &self.process.environment, self.source)
    }
}

/// Prepares the rungs of `spec` and calls `measure`. With `--dry-run`, prints an outline instead; on shards other than
/// shard 0, runs this shard's share of each load.
///
/// # Errors
/// When the plan is invalid, a server does not start, or `measure` fails.
pub(crate) fn execute(
    spec: &Spec,
    asked: &LadderRequest<'_>,
    measure: impl FnOnce(LadderRun<'_>) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let LadderRequest { flags, process, .. } = asked;
    let outline = LadderOutline::from_spec(spec, asked)?;
    outline.check_limits(asked)?;
    if let (Some(_), Err(why)) = (asked.services, &outline.interleaving) {
        return Err(Failure::usage(
            format_args!("both versions are measured in batches, and these can't be: {why}"),
            "give a steady rate, such as --rate 200/s, and leave out --clients, --slice and --rounds",
        ));
    }
    if flags.dry_run {
        outline.show(&flags.documents)?;
        return Ok(Exit::Done);
    }
    let of_step = |step| outline.slice_load(step, asked);
    ShardGroup::run(asked.shard_context, process, of_step, |team| {
        if team.is_some() && asked.kind == LADDER_KIND && flags.ladder.slice.is_none() {
            console::print_notice(
                "across shards, rungs are measured in slices, each a run of all shards: batches need one clock, and each shard has its own",
            );
        }
        measure(LadderRun::prepare(outline.clone(), asked, team)?)
    })
}

/// Identifier of a slice's load, from which all shards derive the same plan.
#[derive(Debug, Serialize, Deserialize)]
struct SliceId {
    /// Index of the rung, counted from 0.
    rung: usize,
}

/// A ladder that is ready to run: its directory, servers and plans.
pub(crate) struct LadderRun<'a> {
    process: &'a ProcessContext,
    /// The shards that share the load; `None` if the load is not split over several machines.
    team: Option<&'a ShardGroup<'a>>,
    /// The outline, without the rungs that can't be measured on this machine.
    outline: LadderOutline,
    pub(crate) record: LadderRecord,
    pub(crate) dir: PathBuf,
    plans: Vec<Plan>,
    /// Whether the CPU cores were kept out of idle states during the last replicate.
    kept_awake: bool,
    /// Whether a rung was dropped because its proxy exited during the measurement.
    has_failed_rung: bool,
    /// Extra measurements, such as the memory of a connection, which are made in slices after the interleaved calls.
    parts: Vec<SliceRounds>,
    /// Interleaved measurements, by rung.
    interleaved: Vec<RungMeasurement>,
    /// Connection setup times, by rung.
    connections: Vec<BTreeMap<ExtraMeasurement, TimeHistogram>>,
    /// Servers, sidecars and proxies; dropping them stops them.
    testbed: Testbed<'a>,
}

impl<'a> LadderRun<'a> {
    /// Creates the ladder's directory and starts its servers and proxies.
    ///
    /// # Errors
    /// When the plan is invalid, the directory can't be created, or a server does not start.
    fn prepare(
        mut outline: LadderOutline,
        asked: &LadderRequest<'a>,
        team: Option<&'a ShardGroup<'a>>,
    ) -> Result<LadderRun<'a>, Failure> {
        let metrics = outline.metric_count();
        let spec = &outline.spec;
        let options = spec.ladder.clone().unwrap_or_default();
        let own = spec.name.as_deref().unwrap_or_default();
        let dir = asked.directory(own);
        let text = spec.without_secrets().to_toml().map_err(Failure::error)?;
        let (available, mut skipped) =
            rung_proxies::remove_unavailable_rungs(&mut outline.rungs, options.proxies.as_deref())?;
        match asked.services {
            Some(_) => execution::save_plan(&dir, "ladder", text)?,
            None => execution::make_directory(&dir, "ladder", text)?,
        }
        let servers = match (&options.serve, asked.services) {
            (_, Some(compared)) => {
                check_client_certificates(&outline.rungs)?;
                servers::start_services(compared, asked.process, &mut outline.rungs)?
            }
            (Some(words), None) => {
                let whose = match &outline.interleaving {
                    Ok(_) => ServerSharing::PerRung,
                    Err(_) => ServerSharing::Shared,
                };
                servers::start(words, &mut outline.rungs, whose, &dir)?
            }
            (None, None) => {
                check_client_certificates(&outline.rungs)?;
                RungServers::default()
            }
        };
        skipped.extend(servers.skipped.iter().cloned());
        for skipped in &skipped {
            let (name, reason) = (&skipped.name, &skipped.reason);
            console::print_notice(format_args!("{name} is not measured: {reason}"));
        }
        let rungs = 0..outline.rungs.len();
        let libraries: Vec<Option<String>> = rungs.map(|rung| servers.tls_library(rung)).collect();
        let identities = servers.identities();
        let testbed = Testbed::build(servers, &mut outline.rungs, &available, &dir)?;
        let (rungs, turning) = (&outline.rungs, &outline.interleaving);
        let plans = rungs
            .iter()
            .map(|rung| asked.resolve_plan(&rung.spec))
            .collect::<Result<Vec<Plan>, Failure>>()?;
        let parts = outline
            .parts
            .iter()
            .map(|part| extra_measurements::measurement_rounds(*part, metrics, rungs, asked))
            .collect::<Result<Vec<SliceRounds>, Failure>>()?;
        let handshakes = crypto_costs::handshakes_by_rung(rungs, &plans, &parts);
        let has_tls = plans.iter().any(|plan| plan.tls.is_some());
        let record = LadderRecord {
            schema_version: SCHEMA_VERSION,
            name: outline.name.clone(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Timestamp::now(),
            conditions: Some(CommonConditions::from_plans(&plans)),
            slice_s: outline.length.as_secs_f64()
                / f64::from(turning.as_ref().map_or(1, |turning| turning.replicates)),
            sliced_because: turning.as_ref().err().cloned(),
            seed: outline.spec.seed.unwrap_or(1),
            client_tls: has_tls.then(version::tls),
            primitives: crypto_costs::measure_primitive_costs(&handshakes, &identities)?,
            rungs: rungs
                .iter()
                .zip(libraries)
                .zip(handshakes)
                .zip(testbed.proxy_descriptions())
                .map(|(((rung, library), handshake), proxy)| Rung {
                    name: rung.name.clone(),
                    settings: rung.settings.clone(),
                    server_tls: library,
                    proxy,
                    handshake,
                    ..Rung::default()
                })
                .collect(),
            skipped,
            gates: outline.gates.clone(),
            ..LadderRecord::default()
        };
        Ok(LadderRun {
            connections: vec![BTreeMap::new(); rungs.len()],
            interleaved: Vec::new(),
            outline,
            record,
            dir,
            plans,
            process: asked.process,
            team,
            kept_awake: false,
            has_failed_rung: false,
            parts,
            testbed,
        })
    }

    /// Returns the rungs' plans, in order.
    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Measures all rungs. The record is saved after every slice, so no measurement is lost if the run ends early.
    ///
    /// # Errors
    /// When a slice could not be measured, or the record can't be saved.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let outcome = match self.outline.interleaving {
            Err(_) => {
                let loads = self.outline.rungs.iter().zip(&self.plans);
                let rounds = SliceRounds {
                    part: None,
                    loads: loads
                        .map(|(rung, plan)| (rung.spec.clone(), plan.clone()))
                        .collect(),
                    rounds: self.outline.rounds.clone(),
                };
                self.run_rounds(&rounds)
            }
            Ok(turning) => self.run_interleaved_and_extra_measurements(turning),
        };
        let lost = self.remove_failed_rungs();
        self.save_record()?;
        outcome.and(lost)
    }

    /// Moves rungs whose proxy exited during the measurement to the record's list of skipped rungs.
    ///
    /// # Errors
    /// When no rung is left.
    fn remove_failed_rungs(&mut self) -> Result<(), Failure> {
        self.testbed.proxies_mut().report_exits();
        let deaths: Vec<Option<String>> = (0..self.record.rungs.len())
            .map(|rung| {
                self.testbed
                    .proxies_mut()
                    .drop_reason(rung)
                    .map(str::to_owned)
            })
            .collect();
        if deaths.iter().all(Option::is_none) {
            return Ok(());
        }
        self.has_failed_rung = true;
        let measured = std::mem::take(&mut self.record.rungs);
        for (rung, death) in measured.into_iter().zip(&deaths) {
            match death {
                None => self.record.rungs.push(rung),
                Some(reason) => self.record.skipped.push(SkippedRung {
                    name: rung.name,
                    reason: reason.clone(),
                }),
            }
        }
        let in_turns = std::mem::take(&mut self.interleaved)
            .into_iter()
            .zip(&deaths);
        let kept = in_turns.filter(|(_, death)| death.is_none());
        self.interleaved = kept.map(|(measured, _)| measured).collect();
        self.update_comparison();
        if self.record.rungs.is_empty() {
            return Err(Failure::error("ladder.via: every rung was skipped"));
        }
        Ok(())
    }

    /// Returns the exit code: an error if a rung was dropped, otherwise the gates' verdict.
    pub(crate) fn exit_code(&self) -> Exit {
        match (self.record.interrupted, self.has_failed_rung) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Error,
            (false, false) => Exit::from_verdict(self.record.conclusion()),
        }
    }

    /// Converts a finished run into a slice for the record.
    fn slice_result(&self, plan: &Plan, run: &Run, name: String) -> SliceResult {
        let limits = self.record.limits.as_ref();
        SliceResult {
            volume: limits
                .map(|limits| SliceThroughput::from_run(run, limits, verified_signatures(plan))),
            ..SliceResult::from_run(run, name)
        }
    }

    /// Returns the medians measured so far as a suffix for progress lines; empty unless the command is `ladder`.
    fn progress_suffix(&self) -> String {
        if self.outline.kind != LADDER_KIND {
            return String::new();
        }
        let median = |rung: &Rung| {
            Some(format!(
                "{} {}",
                rung.name,
                time(rung.median(LadderMetric::P50)?)
            ))
        };
        let medians: Vec<String> = self.record.rungs.iter().filter_map(median).collect();
        match medians.is_empty() {
            // Without a successful call there is no median.
            true => String::new(),
            false => format!("  p50 so far: {}", medians.join(", ")),
        }
    }

    fn record_connection_times(&mut self, rung: usize, plan: &Plan, run: &Run) {
        let measured = &mut self.record.rungs[rung];
        crypto_costs::add_connection_times(plan, run, &mut self.connections[rung], measured);
    }

    fn save_record(&self) -> Result<(), Failure> {
        self.record
            .write(&self.dir)
            .map_err(|e| save_failure(&e, &self.dir))
    }

    fn run_interleaved_and_extra_measurements(
        &mut self,
        turning: Interleaving,
    ) -> Result<(), Failure> {
        self.run_interleaved(turning)?;
        for rounds in std::mem::take(&mut self.parts) {
            if self.record.interrupted {
                break;
            }
            self.save_record()?;
            self.run_rounds(&rounds)?;
        }
        Ok(())
    }
}

/// Returns how many signatures the client verifies in a full handshake: the one in CertificateVerify and, if the
/// server's certificate chain is checked on every connection, one in the chain.
fn verified_signatures(plan: &Plan) -> f64 {
    match plan.tls.as_ref().map(|tls| (&tls.trust, tls.chain_check)) {
        Some((ServerTrust::Pinned(_) | ServerTrust::Unchecked, _) | (_, ChainCheck::Once)) => 1.0,
        Some((_, ChainCheck::Each)) | None => 2.0,
    }
}

/// Rejects rungs with mutual TLS but without a client certificate, which would silently measure server-only TLS.
fn check_client_certificates(rungs: &[RungSpec]) -> Result<(), Failure> {
    let without = rungs.iter().find(|rung| {
        // For a proxy that terminates TLS, the ladder makes the certificates between load and proxy; the certificates
        // between proxy and server are checked elsewhere.
        let is_to_server = !rung.has_proxy() || rung.passes_tls_through();
        rung.security == RungSecurity::Mutual
            && is_to_server
            && rung.spec.tls.as_ref().is_none_or(|tls| tls.cert.is_none())
    });
    match without {
        None => Ok(()),
        Some(rung) => Err(Failure::usage(
            format_args!(
                "ladder.tls: rung \"{}\" has no client certificate",
                rung.name
            ),
            "give tls.cert and tls.key in the plan, or let the ladder start its own servers: serve = [\"score\"]",
        )),
    }
}
