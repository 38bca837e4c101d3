//! The flags that say what the queries of sessions are.

use clap::Args;
use plimsoll_model::spec::{SessionSpec, Spec};

use crate::row_flags::RowFlags;

/// Flags of every command that puts sessions on a stack.
#[derive(Debug, Args)]
pub(crate) struct QueryFlags {
    /// Queries in each session [default: 1].
    #[arg(
        long,
        env = "PLIMSOLL_QUERIES",
        value_name = "N",
        help_heading = "Session"
    )]
    queries: Option<u32>,

    /// The text of a query, with fields such as {{seq}} or {{row.NAME}} where it varies.
    #[arg(
        long,
        env = "PLIMSOLL_QUERY",
        value_name = "TEXT",
        help_heading = "Session"
    )]
    query: Option<String>,

    /// Tokens that each query has to bring, where the service does not say how many it sends;
    /// a query that brings fewer fails with TOKENS_SHORT [default: any number].
    #[arg(
        long,
        env = "PLIMSOLL_EXPECT_TOKENS",
        value_name = "N",
        help_heading = "Session"
    )]
    expect_tokens: Option<u64>,

    #[command(flatten)]
    rows: RowFlags,
}

impl QueryFlags {
    /// Fills the session in, and the rows that its queries take their data from.
    pub(crate) fn lay_over(&self, session: &mut SessionSpec) {
        session.queries = self.queries;
        session.query.clone_from(&self.query);
        session.expect_tokens = self.expect_tokens;
    }

    pub(crate) fn rows(&self, spec: &mut Spec) {
        self.rows.lay_over(spec);
    }
}
