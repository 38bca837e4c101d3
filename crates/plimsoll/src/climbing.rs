//! Variants of one plan (rungs), measured in turn: what `ladder`, `sweep` and `fetch --mode both` have in common.
//!
//! Rungs that can be up together take turns of tens of calls ([`turning`]), each with a run for every sitting. Others
//! have rounds of short slices, every rung once a round in random order, as rungs on several machines have ([`slices`]).
//! Servers of ours are child processes of this program, so that each end has its own CPU; they end with the climb.

mod flags;
mod openssl;
mod parts;
mod prices;
mod servers;
mod sidecars;
mod slices;
mod testbed;
mod timed;
mod turning;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_model::Plan;
use plimsoll_model::ladder::{Gate, LadderRecord, Part, Rung, Slice, turns};
use plimsoll_model::record::Times;
use plimsoll_model::run::{Conditions, Run, SCHEMA_VERSION};
use plimsoll_model::spec::{LadderSpec, RungSpec, Secured, Spec, Via};
use plimsoll_model::units::Period;
use plimsoll_report::quantity::planned;

use crate::console;
use crate::documents::DocumentFlags;
use crate::environment::Environment;
use crate::execution::{self, cannot_keep};
use crate::failure::Failure;
use crate::planning;
use crate::presentation;
use crate::problems::{self, Source};
use crate::process::Process;
use crate::shards::Team;
use crate::version;

pub(crate) use flags::ClimbFlags;
use servers::{Servers, Whose};
use slices::Rounds;
use testbed::Testbed;
use turning::Turning;

/// The warm-up of a slice or of turns takes no longer, unless configured otherwise.
const LONGEST_WARMUP: Duration = Duration::from_secs(2);

/// How long a slice is, unless configured otherwise.
const SLICE: Duration = Duration::from_secs(2);

/// What was asked on the command line, over what the plan's `[ladder]` says.
pub(crate) struct Asked<'a> {
    /// "ladder", "sweep": the end of the directory's name.
    pub(crate) kind: &'a str,
    pub(crate) rounds: Option<u32>,
    /// Where the number is not given: the rounds that so many rungs need.
    pub(crate) default_rounds: fn(usize) -> usize,
    /// What has been measured so far, to stand behind what has been done.
    pub(crate) so_far: fn(&LadderRecord) -> String,
    pub(crate) slice: Option<Period>,
    /// Calls a turn.
    pub(crate) turn: Option<u32>,
    /// What is measured besides turns.
    pub(crate) parts: Option<&'a [String]>,
    /// How well rungs that take turns are to be resolved.
    pub(crate) resolution: Option<Period>,
    /// Cores are kept from falling asleep between calls while rungs take turns.
    pub(crate) keep_awake: Option<bool>,
    pub(crate) budget: Option<Period>,
    pub(crate) gates: &'a [Gate],
    pub(crate) out: Option<&'a Path>,
    /// Several machines make the load.
    pub(crate) over_shards: bool,
    /// They, once they are joined.
    pub(crate) team: Option<&'a Team<'a>>,
}

/// Everything made ready: directory, servers, plans.
pub(crate) struct Climb {
    pub(crate) record: LadderRecord,
    pub(crate) dir: PathBuf,
    rungs: Vec<RungSpec>,
    plans: Vec<Plan>,
    so_far: fn(&LadderRecord) -> String,
    /// Of slices, rung by rung.
    rounds: Vec<usize>,
    /// `None`: slices.
    turning: Option<Turning>,
    /// Cores were kept awake in the last turns.
    awake: bool,
    /// What is measured after the turns.
    parts: Vec<Rounds>,
    /// How long connections took to make, rung by rung.
    connections: Vec<BTreeMap<Part, Times>>,
    /// Dropped, and so stopped, with the climb.
    testbed: Testbed,
}

/// What a climb is going to do, before anything is made ready for it.
pub(crate) struct Outline {
    spec: Spec,
    name: String,
    kind: String,
    rungs: Vec<RungSpec>,
    /// Or why rungs have slices.
    turning: Result<Turning, String>,
    parts: Vec<Part>,
    /// Of a slice, or of a stretch of turns.
    length: Duration,
    /// Of slices, rung by rung.
    rounds: Vec<usize>,
    gates: Vec<Gate>,
}

impl Outline {
    /// # Errors
    /// Where the plan is wrong.
    pub(crate) fn of(
        spec: &Spec,
        asked: &Asked<'_>,
        source: &Source<'_>,
    ) -> Result<Outline, Failure> {
        let mut spec = spec.clone();
        if let Some(resolution) = take_resolution(&mut spec) {
            spec.ladder.get_or_insert_default().resolution = Some(resolution);
        }
        asked.note(&mut spec);
        let options = spec.ladder.clone().unwrap_or_default();
        let length = asked.slice.or(options.slice).map_or(SLICE, |p| p.0);
        if length < Duration::from_millis(100) {
            return Err(Failure::usage(
                "--slice: shorter than 100ms measures nothing",
                "use a duration such as \"2s\"",
            ));
        }
        let listed = |spec: &Spec| {
            let rungs = spec.rungs();
            rungs.map_err(|problem| problems::failure(vec![problem], source))
        };
        let gates = match asked.gates {
            [] => options.fail_if.clone().unwrap_or_default(),
            gates => gates.to_vec(),
        };
        let unserved = listed(&spec)?;
        if asked.over_shards {
            check_for_shards(&options, &unserved)?;
        }
        let turning = Turning::of(&spec, &unserved, asked)?;
        let in_calls = turning.as_ref().ok().filter(|t| t.timed.is_none());
        let parts = parts::wanted(&spec, &unserved, asked, in_calls.copied())?;
        let length = turning.as_ref().map_or(length, |turning| turning.length);
        let sittings = turning.as_ref().map_or(1, |turning| turning.sittings);
        let timed = turning.as_ref().ok().and_then(|turning| turning.timed);
        let links = unserved.len() as u32;
        (spec.load.duration, spec.load.calls) = (Some(Period(length)), None);
        let mut rungs = listed(&spec)?;
        for rung in &mut rungs {
            let of_it = length / sittings;
            rung.spec.load.duration = Some(Period(of_it));
            let warmup = Period((of_it / 4).min(LONGEST_WARMUP));
            let warmup = rung.spec.call.leaves_warmup().then_some(warmup);
            rung.spec.load.warmup = rung.spec.load.warmup.or(warmup);
            // Every link has its turns in it.
            if let (Some((slot, _)), Some(warmup)) = (timed, &mut rung.spec.load.warmup) {
                let rounds = warmup.0.as_nanos().div_ceil((slot * links).as_nanos());
                warmup.0 = slot * links * rounds as u32;
            }
        }
        // What all of them have is the plan's.
        let warmup = |rung: &RungSpec| rung.spec.load.warmup;
        if rungs.iter().all(|rung| warmup(rung) == warmup(&rungs[0])) {
            spec.load.warmup = warmup(&rungs[0]);
        }
        let name = spec.name.clone().unwrap_or_else(|| asked.kind.to_owned());
        let rounds = asked
            .rounds
            .or(options.rounds)
            .map_or_else(|| (asked.default_rounds)(rungs.len()), |n| n as usize);
        // Gates compare slices of the same round, and a slice over shards takes long to start.
        let is_whole = asked.kind == "ladder" || asked.over_shards || !gates.is_empty();
        let rounds = match is_whole || turning.is_ok() {
            true => vec![rounds; rungs.len()],
            false => slices::divide(&mut rungs, rounds),
        };
        Ok(Outline {
            spec,
            name,
            kind: asked.kind.to_owned(),
            rungs,
            turning,
            parts,
            length,
            rounds,
            gates,
        })
    }

    /// Shows it in place of carrying it out.
    ///
    /// # Errors
    /// When stdout can't be written.
    pub(crate) fn show(&self, documents: &DocumentFlags) -> Result<(), Failure> {
        presentation::show_plan(&self.spec.without_secrets(), &self.to_string(), documents)
    }

    /// Metrics whose intervals hold together.
    fn metrics(&self) -> usize {
        let parts = self.parts.iter().map(|part| part.metrics().len());
        turns::METRICS.len() + parts.sum::<usize>()
    }
}

/// In sentences: what is measured, in which order, and how long that takes.
impl fmt::Display for Outline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.rungs.iter().map(|r| r.name.as_str()).collect();
        let n = names.len();
        writeln!(f, "a {} of {n}: {}", self.kind, names.join("; "))?;
        let warmup = |rung: &RungSpec| rung.spec.load.warmup.map_or(Duration::ZERO, |p| p.0);
        let longest = self.rungs.iter().map(warmup).max().unwrap_or_default();
        let mut all = match &self.turning {
            Ok(Turning {
                timed: Some(turns), ..
            }) => {
                timed::show(*turns, longest, f)?;
                longest + self.length
            }
            Ok(turning) => {
                write!(
                    f,
                    "in turns of {} calls for {}",
                    turning.calls,
                    planned(self.length)
                )?;
                if turning.sittings > 1 {
                    write!(f, " in {} sittings", turning.sittings)?;
                }
                if turning.stretches > 1 {
                    let most = self.length * turning.stretches;
                    write!(
                        f,
                        ", and again until it is known, for {} at most",
                        planned(most)
                    )?;
                }
                let each = if turning.sittings > 1 { "each " } else { "" };
                writeln!(f, ", {each}after a warm-up of {}", planned(longest))?;
                (longest * turning.sittings + self.length) * turning.stretches
            }
            Err(why) => {
                if self.kind != "ladder" {
                    writeln!(f, "in slices, and no turns: {why}")?;
                }
                self.show_slices(f)?
            }
        };
        for part in &self.parts {
            let rounds = parts::rounds_of(n, self.metrics());
            writeln!(
                f,
                "{}: {rounds} rounds of slices of {}",
                part.words(),
                planned(parts::SLICE)
            )?;
            all += parts::SLICE * (n * rounds) as u32;
        }
        for gate in &self.gates {
            writeln!(f, "fails if {gate} is exceeded")?;
        }
        write!(
            f,
            "{} of load at most, and what starting and connecting take",
            planned(Duration::from_secs(all.as_secs_f64().ceil() as u64))
        )
    }
}

impl Climb {
    /// # Errors
    /// Where the plan is wrong, its directory can't be made, or a server does not start.
    pub(crate) fn prepare(
        spec: &Spec,
        asked: &Asked<'_>,
        environment: &Environment,
        source: &Source<'_>,
    ) -> Result<Climb, Failure> {
        let outline = Outline::of(spec, asked, source)?;
        let metrics = outline.metrics();
        let Outline {
            spec,
            name,
            mut rungs,
            turning,
            parts,
            length,
            rounds,
            gates,
            ..
        } = outline;
        let options = spec.ladder.clone().unwrap_or_default();
        let own = spec.name.as_deref().unwrap_or_default();
        let dir = execution::directory(asked.out, &format!("{own} {}", asked.kind));
        let text = spec.without_secrets().to_toml().map_err(Failure::error)?;
        execution::make_directory(&dir, "ladder", text)?;
        let servers = match &options.serve {
            Some(words) => {
                let whose = match &turning {
                    Ok(_) => Whose::EachRungs,
                    Err(_) => Whose::Shared,
                };
                servers::start(words, &mut rungs, whose, &dir)?
            }
            None => {
                check_identity(&rungs)?;
                Servers::default()
            }
        };
        for skipped in &servers.skipped {
            console::notice(format_args!(
                "{} is not measured: {}",
                skipped.name, skipped.reason
            ));
        }
        let skipped = servers.skipped.clone();
        let libraries: Vec<Option<String>> =
            (0..rungs.len()).map(|rung| servers.library(rung)).collect();
        let identities = servers.identities();
        let testbed = Testbed::build(servers, &mut rungs, &dir)?;
        let plans = rungs
            .iter()
            .map(|rung| planning::plan(&rung.spec, environment, source))
            .collect::<Result<Vec<Plan>, Failure>>()?;
        let parts = parts
            .into_iter()
            .map(|part| parts::rounds(part, metrics, &rungs, environment, source))
            .collect::<Result<Vec<Rounds>, Failure>>()?;
        let handshakes = prices::handshakes(&rungs, &plans, &parts);
        let has_tls = plans.iter().any(|plan| plan.tls.is_some());
        let record = LadderRecord {
            schema_version: SCHEMA_VERSION,
            name,
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Timestamp::now(),
            conditions: Some(Conditions::of(&plans)),
            slice_s: length.as_secs_f64()
                / f64::from(turning.as_ref().map_or(1, |turning| turning.sittings)),
            sliced_because: turning.as_ref().err().cloned(),
            seed: spec.seed.unwrap_or(1),
            client_tls: has_tls.then(version::tls),
            primitives: prices::primitives(&handshakes, &identities)?,
            rungs: rungs
                .iter()
                .zip(libraries)
                .zip(handshakes)
                .map(|((rung, library), handshake)| Rung {
                    name: rung.name.clone(),
                    settings: rung.settings.clone(),
                    server_tls: library,
                    handshake,
                    ..Rung::default()
                })
                .collect(),
            skipped,
            gates,
            ..LadderRecord::default()
        };
        Ok(Climb {
            connections: vec![BTreeMap::new(); rungs.len()],
            record,
            dir,
            rungs,
            plans,
            rounds,
            so_far: asked.so_far,
            turning: turning.ok(),
            awake: false,
            parts,
            testbed,
        })
    }

    /// The rungs' plans, in order.
    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Measures round by round; what was measured is kept after every slice, whatever ends
    /// the climb. `team`: the shards that make each slice. `slice` makes of a run what the record keeps.
    ///
    /// # Errors
    /// When a slice could not be measured, or the record can't be kept.
    pub(crate) fn run(
        &mut self,
        process: &Process,
        team: Option<&Team<'_>>,
        slice: impl Fn(&Plan, &Run, String) -> Slice,
    ) -> Result<(), Failure> {
        let outcome = match self.turning {
            None => {
                let loads = self.rungs.iter().zip(&self.plans);
                let rounds = Rounds {
                    part: None,
                    loads: loads
                        .map(|(rung, plan)| (rung.spec.clone(), plan.clone()))
                        .collect(),
                    rounds: self.rounds.clone(),
                };
                self.climb(&rounds, process, team, &slice)
            }
            Some(turning) => self.turns_and_parts(turning, process, &slice),
        };
        self.keep()?;
        outcome
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

    fn turns_and_parts(
        &mut self,
        turning: Turning,
        process: &Process,
        slice: &impl Fn(&Plan, &Run, String) -> Slice,
    ) -> Result<(), Failure> {
        self.take_turns(turning, process, slice)?;
        for rounds in std::mem::take(&mut self.parts) {
            if self.record.interrupted {
                break;
            }
            self.keep()?;
            self.climb(&rounds, process, None, slice)?;
        }
        Ok(())
    }
}

/// `--resolve 1us`: a time, which can't be the addresses of a name that the flag is for otherwise.
fn take_resolution(spec: &mut Spec) -> Option<Period> {
    let given = spec.load.resolve.as_mut()?;
    let at = given
        .iter()
        .position(|text| text.parse::<Period>().is_ok())?;
    let resolution = given.remove(at).parse().ok();
    if given.is_empty() {
        spec.load.resolve = None;
    }
    resolution
}

/// What runs beside shard 0 is not there for the others.
fn check_for_shards(options: &LadderSpec, rungs: &[RungSpec]) -> Result<(), Failure> {
    if options.serve.is_some() {
        return Err(Failure::usage(
            "ladder.serve with --rendezvous: servers that a ladder starts are reached from their own machine only",
            "start the server yourself, and name it with --target, or a target for each rung",
        ));
    }
    match rungs.iter().find(|rung| rung.via != Via::Direct) {
        None => Ok(()),
        Some(rung) => Err(Failure::usage(
            format_args!(
                "ladder.via with --rendezvous: the sidecars of rung \"{}\" are reached from their own machine only",
                rung.name
            ),
            "start relays yourself (plimsoll relay sidecar), and give each a rung with its target",
        )),
    }
}

/// Mutual TLS without a certificate would quietly be another rung.
fn check_identity(rungs: &[RungSpec]) -> Result<(), Failure> {
    let without = rungs.iter().find(|rung| {
        rung.secured == Secured::Mutual
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
