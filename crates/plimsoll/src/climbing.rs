//! Variants of one plan (rungs), measured in turn: what `ladder`, `sweep` and `fetch --mode both` have in common.
//!
//! Rungs that can be up together take turns of tens of calls ([`turning`]), each with a run for every sitting. Others
//! have rounds of short slices, every rung once a round in random order, as rungs on several machines have ([`slices`]).
//! Servers of ours are child processes of this program, so that each end has its own CPU; they end with the climb.

mod flags;
mod openssl;
mod outline;
mod parts;
mod prices;
mod proxied;
mod routes;
mod servers;
mod sidecars;
mod slices;
mod testbed;
mod timed;
mod turning;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_model::Plan;
use plimsoll_model::ladder::turns::Measured;
use plimsoll_model::ladder::{LadderRecord, Metric, Part, Rung, Skipped, Slice, Volume};
use plimsoll_model::plan::{ChainCheck, Trust};
use plimsoll_model::record::Times;
use plimsoll_model::run::{Conditions, Run, SCHEMA_VERSION};
use plimsoll_model::spec::{RungSpec, Secured, Spec};
use plimsoll_report::quantity::time;
use serde::{Deserialize, Serialize};

use crate::console;
use crate::execution::{self, cannot_keep};
use crate::failure::{Exit, Failure};
use crate::planning;
use crate::problems::Source;
use crate::process::Process;
use crate::shards::{Meeting, Team};
use crate::version;

pub(crate) use flags::ClimbFlags;
use outline::Outline;
pub(crate) use routes::example;
use servers::{Servers, Whose};
use slices::Rounds;
use testbed::Testbed;
use turning::Turning;

/// The kind whose rungs are compared with each other.
const LADDER_KIND: &str = "ladder";

/// How long a slice is, unless configured otherwise.
const DEFAULT_SLICE: Duration = Duration::from_secs(2);

/// What was asked on the command line.
pub(crate) struct Asked<'a> {
    /// "ladder", "sweep": the end of the directory's name.
    pub(crate) kind: &'static str,
    pub(crate) flags: &'a ClimbFlags,
    pub(crate) source: &'a Source<'a>,
    pub(crate) process: &'a Process,
    /// What connects this shard to the others; `None`: this machine makes the load alone.
    pub(crate) meeting: Option<&'a Meeting>,
}

impl Asked<'_> {
    /// Returns whether several machines make the load.
    fn over_shards(&self) -> bool {
        self.flags.shards.are_asked_for()
    }

    fn plan(&self, spec: &Spec) -> Result<Plan, Failure> {
        planning::plan(spec, &self.process.environment, self.source)
    }
}

/// Shows what the rungs of `spec` come to, or has `measure` measure them; with other shards than the first, makes
/// this one's part of the load.
///
/// # Errors
/// Where the plan is wrong, servers do not start, and as `measure`.
pub(crate) fn execute(
    spec: &Spec,
    asked: &Asked<'_>,
    measure: impl FnOnce(Climb<'_>) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let Asked { flags, process, .. } = asked;
    let outline = Outline::of(spec, asked)?;
    if flags.dry_run {
        outline.show(&flags.documents)?;
        return Ok(Exit::Done);
    }
    let of_step = |step| outline.load(step, asked);
    Team::make(asked.meeting, process, of_step, |team| {
        if team.is_some() && asked.kind == LADDER_KIND && flags.ladder.slice.is_none() {
            console::notice(
                "over shards rungs have slices, each a run of all shards: batches are timed by one clock, and shards have one each",
            );
        }
        measure(Climb::prepare(outline.clone(), asked, team)?)
    })
}

/// The identity of a slice, from which all shards make the same plan.
#[derive(Debug, Serialize, Deserialize)]
struct Step {
    /// The rung's index, from 0.
    rung: usize,
}

/// Everything made ready: directory, servers, plans.
pub(crate) struct Climb<'a> {
    process: &'a Process,
    /// The shards that share the load; `None`: this machine makes it alone.
    team: Option<&'a Team<'a>>,
    /// Its rungs are those that can be measured.
    outline: Outline,
    pub(crate) record: LadderRecord,
    pub(crate) dir: PathBuf,
    plans: Vec<Plan>,
    /// Cores were kept awake in the last turns.
    awake: bool,
    /// A rung's proxy ended while it was measured.
    has_lost: bool,
    /// What is measured after the turns.
    parts: Vec<Rounds>,
    /// What was measured in turns, rung by rung.
    in_turns: Vec<Measured>,
    /// How long connections took to make, rung by rung.
    connections: Vec<BTreeMap<Part, Times>>,
    /// Dropped, and so stopped, with the climb.
    testbed: Testbed,
}

impl<'a> Climb<'a> {
    /// # Errors
    /// Where the plan is wrong, its directory can't be made, or a server does not start.
    fn prepare(
        mut outline: Outline,
        asked: &Asked<'a>,
        team: Option<&'a Team<'a>>,
    ) -> Result<Climb<'a>, Failure> {
        let metrics = outline.metrics();
        let spec = &outline.spec;
        let options = spec.ladder.clone().unwrap_or_default();
        let own = spec.name.as_deref().unwrap_or_default();
        let dir =
            execution::directory(asked.flags.out.as_deref(), &format!("{own} {}", asked.kind));
        let text = spec.without_secrets().to_toml().map_err(Failure::error)?;
        let (available, mut skipped) = proxied::leave_out(&mut outline.rungs)?;
        execution::make_directory(&dir, "ladder", text)?;
        let servers = match &options.serve {
            Some(words) => {
                let whose = match &outline.turning {
                    Ok(_) => Whose::EachRungs,
                    Err(_) => Whose::Shared,
                };
                servers::start(words, &mut outline.rungs, whose, &dir)?
            }
            None => {
                check_identity(&outline.rungs)?;
                Servers::default()
            }
        };
        skipped.extend(servers.skipped.iter().cloned());
        for skipped in &skipped {
            let (name, reason) = (&skipped.name, &skipped.reason);
            console::notice(format_args!("{name} is not measured: {reason}"));
        }
        let rungs = 0..outline.rungs.len();
        let libraries: Vec<Option<String>> = rungs.map(|rung| servers.library(rung)).collect();
        let identities = servers.identities();
        let testbed = Testbed::build(servers, &mut outline.rungs, &available, &dir)?;
        let (rungs, turning) = (&outline.rungs, &outline.turning);
        let plans = rungs
            .iter()
            .map(|rung| asked.plan(&rung.spec))
            .collect::<Result<Vec<Plan>, Failure>>()?;
        let parts = outline
            .parts
            .iter()
            .map(|part| parts::rounds(*part, metrics, rungs, asked))
            .collect::<Result<Vec<Rounds>, Failure>>()?;
        let handshakes = prices::handshakes(rungs, &plans, &parts);
        let has_tls = plans.iter().any(|plan| plan.tls.is_some());
        let record = LadderRecord {
            schema_version: SCHEMA_VERSION,
            name: outline.name.clone(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Timestamp::now(),
            conditions: Some(Conditions::of(&plans)),
            slice_s: outline.length.as_secs_f64()
                / f64::from(turning.as_ref().map_or(1, |turning| turning.sittings)),
            sliced_because: turning.as_ref().err().cloned(),
            seed: outline.spec.seed.unwrap_or(1),
            client_tls: has_tls.then(version::tls),
            primitives: prices::primitives(&handshakes, &identities)?,
            rungs: rungs
                .iter()
                .zip(libraries)
                .zip(handshakes)
                .zip(testbed.proxies())
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
        Ok(Climb {
            connections: vec![BTreeMap::new(); rungs.len()],
            in_turns: Vec::new(),
            outline,
            record,
            dir,
            plans,
            process: asked.process,
            team,
            awake: false,
            has_lost: false,
            parts,
            testbed,
        })
    }

    /// The rungs' plans, in order.
    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Measures round by round; what was measured is kept after every slice, whatever ends
    /// the climb.
    ///
    /// # Errors
    /// When a slice could not be measured, or the record can't be kept.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let outcome = match self.outline.turning {
            Err(_) => {
                let loads = self.outline.rungs.iter().zip(&self.plans);
                let rounds = Rounds {
                    part: None,
                    loads: loads
                        .map(|(rung, plan)| (rung.spec.clone(), plan.clone()))
                        .collect(),
                    rounds: self.outline.rounds.clone(),
                };
                self.climb(&rounds)
            }
            Ok(turning) => self.turns_and_parts(turning),
        };
        let lost = self.leave_out_lost();
        self.keep()?;
        outcome.and(lost)
    }

    /// Takes the rungs out of the record whose proxies ended while they were measured.
    ///
    /// # Errors
    /// Fails if no rung is left.
    fn leave_out_lost(&mut self) -> Result<(), Failure> {
        self.testbed.proxied().note_deaths();
        let deaths: Vec<Option<String>> = (0..self.record.rungs.len())
            .map(|rung| self.testbed.proxied().death(rung).map(str::to_owned))
            .collect();
        if deaths.iter().all(Option::is_none) {
            return Ok(());
        }
        self.has_lost = true;
        let measured = std::mem::take(&mut self.record.rungs);
        for (rung, death) in measured.into_iter().zip(&deaths) {
            match death {
                None => self.record.rungs.push(rung),
                Some(reason) => self.record.skipped.push(Skipped {
                    name: rung.name,
                    reason: reason.clone(),
                }),
            }
        }
        let in_turns = std::mem::take(&mut self.in_turns).into_iter().zip(&deaths);
        let kept = in_turns.filter(|(_, death)| death.is_none());
        self.in_turns = kept.map(|(measured, _)| measured).collect();
        self.compare_turns();
        if self.record.rungs.is_empty() {
            return Err(Failure::error("ladder.via: every rung was left out"));
        }
        Ok(())
    }

    /// Returns the exit code of what was measured: an error where a rung was lost.
    pub(crate) fn exit(&self) -> Exit {
        match (self.record.interrupted, self.has_lost) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Error,
            (false, false) => Exit::of(self.record.conclusion()),
        }
    }

    /// What the record keeps of a run.
    fn slice(&self, plan: &Plan, run: &Run, name: String) -> Slice {
        let limits = self.record.limits.as_ref();
        Slice {
            volume: limits.map(|limits| Volume::of(run, limits, verified(plan))),
            ..Slice::of(run, name)
        }
    }

    /// What has been measured so far, to stand behind what has been done: of a ladder the medians.
    fn so_far(&self) -> String {
        if self.outline.kind != LADDER_KIND {
            return String::new();
        }
        let median =
            |rung: &Rung| Some(format!("{} {}", rung.name, time(rung.median(Metric::P50)?)));
        let medians: Vec<String> = self.record.rungs.iter().filter_map(median).collect();
        match medians.is_empty() {
            // Not one call succeeded.
            true => String::new(),
            false => format!("  p50 so far: {}", medians.join(", ")),
        }
    }

    fn note_connections(&mut self, rung: usize, plan: &Plan, run: &Run) {
        let measured = &mut self.record.rungs[rung];
        prices::note_connections(plan, run, &mut self.connections[rung], measured);
    }

    fn keep(&self) -> Result<(), Failure> {
        self.record
            .write(&self.dir)
            .map_err(|e| cannot_keep(&e, &self.dir))
    }

    fn turns_and_parts(&mut self, turning: Turning) -> Result<(), Failure> {
        self.take_turns(turning)?;
        for rounds in std::mem::take(&mut self.parts) {
            if self.record.interrupted {
                break;
            }
            self.keep()?;
            self.climb(&rounds)?;
        }
        Ok(())
    }
}

/// Signatures that a client of `plan` checks in a full handshake: the server's, and one of the
/// chain where that is checked every time.
fn verified(plan: &Plan) -> f64 {
    match plan.tls.as_ref().map(|tls| (&tls.trust, tls.chain)) {
        Some((Trust::Pinned(_) | Trust::Unchecked, _) | (_, ChainCheck::Once)) => 1.0,
        Some((_, ChainCheck::Each)) | None => 2.0,
    }
}

/// Mutual TLS without a certificate would quietly be another rung.
fn check_identity(rungs: &[RungSpec]) -> Result<(), Failure> {
    let without = rungs.iter().find(|rung| {
        // A proxy gets certificates of the ladder for the load, and is asked about those for the server elsewhere.
        let is_to_server = !rung.has_proxy() || rung.is_passed_through();
        rung.secured == Secured::Mutual
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
