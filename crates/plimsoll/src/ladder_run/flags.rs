//! Flags of the commands that measure the rungs (variants) of a ladder: `ladder` and `sweep`.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{LadderSpec, Spec, apply_flags_to_optional};

use crate::failure::Failure;
use crate::load::documents::DocumentFlags;
use crate::load::planning::read_plan_file;
use crate::settings::load_flags::LoadFlags;
use crate::settings::origins::FlagOrigins;
use crate::settings::problems;
use crate::shards::identity::ShardFlags;

/// Flags that set what is measured, how often, and where the results are written.
#[derive(Debug, Default, Args)]
pub(crate) struct LadderFlags {
    /// Your own server, instead of those that the plan names or starts.
    #[arg(long, value_name = "URL")]
    target: Option<String>,

    #[command(flatten)]
    pub(super) ladder: LadderSpec,

    /// Let this machine's cores enter idle states, even where the ladder starts the servers and would keep the cores
    /// awake.
    #[arg(
        long,
        help_heading = "Rounds",
        conflicts_with = "keep_awake",
        display_order = 101
    )]
    no_keep_awake: bool,

    /// The directory of all runs [default: runs/<UTC time>-<name>-<command>].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,

    /// Show the plan, and what would be measured for how long, without running it.
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) load: LoadFlags,

    #[command(flatten)]
    pub(crate) shards: ShardFlags,
}

impl LadderFlags {
    /// Returns default flags with `out` as the directory of all runs.
    pub(crate) fn with_directory(out: Option<PathBuf>) -> LadderFlags {
        LadderFlags {
            out,
            ..LadderFlags::default()
        }
    }

    /// Reads the plan file `plan` and applies the flags; returns the spec and the file's text.
    ///
    /// # Errors
    /// When the file can't be read or is not a valid plan.
    pub(crate) fn read_spec(
        &self,
        plan: &Path,
        origins: &FlagOrigins,
    ) -> Result<(Spec, String), Failure> {
        let (mut spec, text) = read_plan_file(plan)?;
        if let Some(target) = &self.target {
            spec.target = Some(target.clone());
            if let Some(ladder) = &mut spec.ladder {
                ladder.serve = None;
            }
        }
        self.load.apply(&mut spec, origins)?;
        Ok((spec, text))
    }

    /// Writes the ladder flags into `spec`, so that the saved plan reproduces the run.
    ///
    /// # Errors
    /// Returns the errors of [`apply_flags_to_optional`].
    pub(crate) fn apply_to_spec(&self, spec: &mut Spec) -> Result<(), Failure> {
        let mut typed = self.ladder.clone();
        typed.resolution = typed.resolution.or(take_misplaced_resolution(spec));
        // Batches and slices exclude each other: a flag about one of them clears the plan's keys about the other.
        if let Some(ladder) = &mut spec.ladder {
            if typed.slice.is_some() || typed.rounds.is_some() {
                ladder.batch = None;
            }
            if typed.batch.is_some() {
                (ladder.slice, ladder.rounds) = (None, None);
            }
        }
        apply_flags_to_optional("ladder", &typed, &mut spec.ladder)
            .map_err(problems::flag_failure)?;
        if self.no_keep_awake {
            spec.ladder.get_or_insert_default().keep_awake = Some(false);
        }
        Ok(())
    }
}

/// Removes a duration from the values of `--resolve`, such as `--resolve 1us`, and returns it. The flag maps host names
/// to addresses, so the user must have meant `--resolution`.
fn take_misplaced_resolution(spec: &mut Spec) -> Option<Period> {
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
