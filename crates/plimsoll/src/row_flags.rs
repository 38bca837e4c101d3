//! The flags that name the rows that calls take their data from.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{RowsSpec, Spec};

/// Flags of every command whose calls may have data of a file. Laid over a spec they win over
/// it, each by itself.
#[derive(Debug, Default, Args)]
pub(crate) struct RowFlags {
    /// A file of rows for {{row.NAME}} in the message or query: CSV with a line of names, or a JSON object a line.
    #[arg(long, value_name = "FILE", help_heading = "Call")]
    rows: Option<PathBuf>,

    /// Which row a call has: round-robin, random or unique (none twice) [default: round-robin].
    #[arg(long, value_name = "ORDER", help_heading = "Call")]
    rows_order: Option<String>,
}

impl RowFlags {
    pub(crate) fn apply(&self, spec: &mut Spec) {
        let mut rows = spec.rows.take().unwrap_or_default();
        rows.file = self.rows.clone().or(rows.file);
        rows.order = self.rows_order.clone().or(rows.order);
        spec.rows = Some(rows).filter(|rows| *rows != RowsSpec::default());
    }
}
