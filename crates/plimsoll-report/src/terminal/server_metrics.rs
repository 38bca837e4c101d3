//! Renders the metrics that the server published itself.

use plimsoll_model::runs::run::Run;
use plimsoll_model::runs::server_metrics::ServerMetricsRecord;

use super::{TerminalOptions, write_list, write_wrapped};
use crate::sections::server_metrics::{HEADING, facts, table};

pub(super) fn write_server_metrics(out: &mut String, run: &Run, options: &TerminalOptions) {
    let record = match ServerMetricsRecord::read(&run.dir) {
        Ok(Some(record)) => record,
        Ok(None) => return,
        Err(problem) => {
            write_wrapped(out, &format!("{HEADING} can't be read: {problem}"), options);
            out.push('\n');
            return;
        }
    };
    let metrics = table(&record);
    if metrics.rows.is_empty() {
        write_wrapped(out, HEADING, options);
    } else {
        *out += &metrics.render(options.width);
    }
    write_list(out, facts(&record), options);
    out.push('\n');
}
