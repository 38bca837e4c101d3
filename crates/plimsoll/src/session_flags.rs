//! The flags of every command that puts sessions on a stack.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::run::Run;
use plimsoll_model::spec::Spec;
use plimsoll_model::units::Period;
use plimsoll_protocols::flags::RowFlags;
use plimsoll_protocols::session::SessionSection;

use crate::commands::report;
use crate::failure::Failure;

/// What the sessions ask, how they come back, and where their results go besides.
#[derive(Debug, Args)]
pub(crate) struct SessionFlags {
    /// Queries in each session [default: 1].
    #[arg(long, value_name = "N", help_heading = "Session")]
    queries: Option<u32>,

    /// The text of a query, with fields such as {{seq}} or {{row.NAME}} where it varies.
    #[arg(long, value_name = "TEXT", help_heading = "Session")]
    query: Option<String>,

    /// Tokens that each query has to bring, where the service does not say how many it sends;
    /// a query that brings fewer fails with TOKENS_SHORT [default: any number].
    #[arg(long, value_name = "N", help_heading = "Session")]
    expect_tokens: Option<u64>,

    #[command(flatten)]
    rows: RowFlags,

    /// How often in a row to try to reopen a lost socket; 0: never [default: 5].
    #[arg(long, value_name = "N", help_heading = "Session")]
    reconnects: Option<u32>,

    /// The longest first pause before that; it doubles each time [default: 1s].
    #[arg(long, value_name = "TIME", help_heading = "Session")]
    reconnect_pause: Option<Period>,

    /// The longest pause of all [default: 30s].
    #[arg(long, value_name = "TIME", help_heading = "Session")]
    reconnect_pause_most: Option<Period>,

    /// Offer to have the sockets' messages compressed (permessage-deflate); each costs CPU.
    #[arg(long, help_heading = "Session")]
    compression: bool,

    /// Write loadtest_TIME.csv, a row a query, and loadtest_TIME_summary.json there, too.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    output_dir: Option<PathBuf>,
}

impl SessionFlags {
    pub(crate) fn apply(&self, session: &mut SessionSection) {
        session.queries = self.queries;
        session.query.clone_from(&self.query);
        session.expect_tokens = self.expect_tokens;
        session.reconnects = self.reconnects;
        session.reconnect_pause = self.reconnect_pause;
        session.reconnect_pause_most = self.reconnect_pause_most;
        session.compression = self.compression.then_some(true);
    }

    /// Applies the flags to the plan besides its call.
    pub(crate) fn apply_to_plan(&self, spec: &mut Spec) {
        self.rows.apply(spec);
        if self.output_dir.is_some() {
            // The rows are made of them.
            spec.requests = Some(true);
        }
    }

    /// Writes the files that were asked for besides the run.
    ///
    /// # Errors
    /// When they can't be written.
    pub(crate) fn write_files(&self, run: &Run) -> Result<(), Failure> {
        match &self.output_dir {
            None => Ok(()),
            Some(folder) => report::export_sessions(run, folder).map(|_| ()),
        }
    }
}
