//! The flags of commands that climb.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::ladder::Gate;
use plimsoll_model::spec::{LadderSpec, Spec};
use plimsoll_model::units::Period;

use crate::documents::DocumentFlags;
use crate::failure::Failure;
use crate::load_flags::{LoadFlags, lay, listed};
use crate::origins::Origins;
use crate::planning::read;
use crate::shards::identity::ShardFlags;

/// What is measured, how often, and where it is kept.
#[derive(Debug, Default, Args)]
pub(crate) struct ClimbFlags {
    /// A server of your own, instead of the plan's target and of servers that the plan starts.
    #[arg(long, value_name = "URL")]
    target: Option<String>,

    /// How often each variant is measured [default: as often as it takes to see differences].
    #[arg(
        long, value_name = "N", help_heading = "Rounds",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: Option<u32>,

    /// How long a slice is measured [default: 2s].
    #[arg(long, value_name = "TIME", help_heading = "Rounds")]
    pub(super) slice: Option<Period>,

    /// Calls a turn, where all variants are up together and take turns [default: 20].
    #[arg(
        long, value_name = "CALLS", help_heading = "Rounds",
        value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with_all = ["slice", "rounds"]
    )]
    turn: Option<u32>,

    /// Take turns until differences at the p50 are resolved to ± this, such as 1us [default: for --duration].
    /// `--resolve 1us` means the same.
    #[arg(long, value_name = "TIME", help_heading = "Rounds")]
    resolution: Option<Period>,

    /// Keep this machine's cores from falling asleep between calls while variants take turns. Waking a core takes
    /// longer than TLS does, and the time varies. It shows differences of some tenths of a microsecond, which two
    /// processes of one server may have too.
    #[arg(long, help_heading = "Rounds")]
    keep_awake: bool,

    /// The longest time for --resolution and --fail-if [default: 2m].
    #[arg(long, value_name = "TIME", help_heading = "Rounds")]
    budget: Option<Period>,

    /// Exit with 99 when a variant exceeds the first one by more than this, beyond doubt: a metric and the allowed
    /// increase, such as 'p99 +3%' or 'client_cpu +2us'; may be given again. Variants take turns until that is
    /// decided.
    #[arg(long, value_name = "GATE", help_heading = "Rounds")]
    fail_if: Vec<Gate>,

    /// What is measured besides turns, as a list: saturated, connections, resumed, memory; or none
    /// [default: connections, and all of them where the ladder starts the servers].
    #[arg(
        long,
        value_name = "PARTS",
        value_delimiter = ',',
        help_heading = "Rounds"
    )]
    parts: Option<Vec<String>>,

    /// The directory of all runs [default: runs/<UTC time>-<name>-<command>].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(super) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,

    /// Show the plan, what would be measured and for how long, and don't run it.
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) load: LoadFlags,

    #[command(flatten)]
    pub(crate) shards: ShardFlags,
}

impl ClimbFlags {
    /// Nothing is asked for but the directory of all runs.
    pub(crate) fn into_directory(out: Option<PathBuf>) -> ClimbFlags {
        ClimbFlags {
            out,
            ..ClimbFlags::default()
        }
    }

    /// The plan in the file `plan` with the flags applied, and its text.
    ///
    /// # Errors
    /// Where the file can't be read, or is no plan.
    pub(crate) fn spec(&self, plan: &Path, origins: &Origins) -> Result<(Spec, String), Failure> {
        let (mut spec, text) = read(plan)?;
        if let Some(target) = &self.target {
            spec.target = Some(target.clone());
            if let Some(ladder) = &mut spec.ladder {
                ladder.serve = None;
            }
        }
        self.load.apply(&mut spec, origins)?;
        Ok((spec, text))
    }

    /// The plan says what was asked in place of it, so that the plan that is kept repeats the same.
    pub(super) fn note(&self, spec: &mut Spec) {
        let resolution = take_resolution(spec);
        let mut ladder = spec.ladder.take().unwrap_or_default();
        ladder.resolution = resolution.or(ladder.resolution);
        // Rungs take turns or have slices.
        if self.slice.is_some() || self.rounds.is_some() {
            ladder.turn = None;
        }
        if self.turn.is_some() {
            (ladder.slice, ladder.rounds) = (None, None);
        }
        lay!(self over ladder: slice, rounds, turn, resolution, budget, parts);
        ladder.keep_awake = self.keep_awake.then_some(true).or(ladder.keep_awake);
        ladder.fail_if = listed(&self.fail_if).or(ladder.fail_if);
        spec.ladder = Some(ladder).filter(|ladder| *ladder != LadderSpec::default());
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
