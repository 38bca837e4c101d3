//! Flags that set where the results of a load are written.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::Spec;

use crate::failure::Failure;
use crate::load::documents::{self, DocumentFlags, StdoutContent};
use crate::load::presentation;

/// Flags that set where results go, common to all commands that generate load.
#[derive(Debug, Default, Args)]
pub(crate) struct OutputFlags {
    /// The run directory [default: runs/<UTC time>-<name>].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,

    /// Print a progress line every N calls; its time is interpolated within the second.
    #[arg(
        long, value_name = "CALLS", help_heading = "Output",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(super) progress_every: Option<u64>,

    /// Also write the load as a plan file ("-": stdout).
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    save_plan: Option<PathBuf>,

    /// Show the plan with every default filled in, and don't run it.
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,
}

impl OutputFlags {
    pub(crate) fn stdout_content(&self) -> StdoutContent {
        if self.saves_plan_to_stdout() {
            StdoutContent::Document
        } else {
            self.documents.stdout_content()
        }
    }

    pub(super) fn saves_plan_to_stdout(&self) -> bool {
        self.save_plan.as_deref().is_some_and(documents::is_stdout)
    }

    /// Saves or prints `spec` as requested. Returns whether this is a dry run, after which the command must end.
    ///
    /// # Errors
    /// When a file can't be written, or two documents would go to stdout.
    pub(crate) fn save_or_show_plan(&self, spec: &Spec) -> Result<bool, Failure> {
        self.documents.spans.check_plan(spec)?;
        self.save_plan_file(spec)?;
        if self.dry_run && !self.saves_plan_to_stdout() {
            presentation::show_plan(&spec.without_secrets(), "", &self.documents)?;
        }
        Ok(self.dry_run)
    }

    /// Writes the plan file of `--save-plan`.
    pub(super) fn save_plan_file(&self, spec: &Spec) -> Result<(), Failure> {
        let Some(path) = &self.save_plan else {
            return Ok(());
        };
        if self.saves_plan_to_stdout() && self.documents.stdout_content() != StdoutContent::Tables {
            return Err(Failure::usage(
                "--save-plan - and another flag both write to stdout",
                "write one of them to a file, such as --save-plan plan.toml",
            ));
        }
        let text = spec.without_secrets().to_toml().map_err(Failure::error)?;
        documents::write_text("--save-plan", path, text)
    }

    /// Checks the flags for a command line with several plans.
    ///
    /// # Errors
    /// When a flag names a single file or directory, which can't hold the results of several plans.
    pub(crate) fn reject_for_several_plans(&self) -> Result<(), Failure> {
        for (flag, given) in [
            ("--out", self.out.is_some()),
            ("--save-plan", self.save_plan.is_some()),
        ] {
            if given {
                return Err(Failure::usage(
                    format_args!("{flag} can't be used with several plans"),
                    "give one plan, or leave it out: each run gets a directory of its own in runs/",
                ));
            }
        }
        Ok(())
    }
}
