//! Renders the slowest calls of a run.

use plimsoll_model::runs::run::Run;

use super::TerminalOptions;
use super::table::COLUMN_GAP;
use crate::sections::slowest;
use crate::sections::table::TextTable;

pub(super) fn write_slowest(out: &mut String, run: &Run, options: &TerminalOptions) {
    let calls = slowest::table(run);
    if !calls.rows.is_empty() {
        *out += &render_table(&calls, options.width);
        out.push('\n');
    }
}

/// Renders the table. Readers copy trace ids, so no cell is wrapped; columns that don't fit are left out completely.
fn render_table(calls: &TextTable, width: usize) -> String {
    /// The columns that may be left out, the least important first.
    const SPARE_COLUMNS: [usize; 4] = [4, 2, 1, 3];
    let needed = |column: usize| {
        let rows = calls.rows.iter().chain([&calls.head]);
        COLUMN_GAP + rows.fold(0_usize, |most, row| most.max(row[column].chars().count()))
    };
    let mut shown: Vec<usize> = (0..calls.head.len()).collect();
    for spare in SPARE_COLUMNS {
        if shown.iter().map(|column| needed(*column)).sum::<usize>() > width {
            shown.retain(|column| *column != spare);
        }
    }
    calls.columns(&shown).render_unwrapped(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_fits_width_with_whole_trace_id() {
        let trace_id = "0af7651916cd43dd8448eb211c80319c";
        let row = [
            "1.23 s",
            "1.22 s",
            "12.345 s",
            "DEADLINE_EXCEEDED",
            "closed, of worker 11",
            trace_id,
        ];
        let calls = slowest::calls_table([row.map(str::to_owned)]);
        for width in 60..140 {
            let shown = render_table(&calls, width);
            let lines: Vec<&str> = shown.lines().collect();
            assert_eq!(lines.len(), 2, "{width}: {shown}");
            assert!(lines.iter().all(|line| line.len() <= width), "{shown}");
            assert!(lines[1].contains("1.23 s") && lines[1].ends_with(trace_id));
        }
        let wide = render_table(&calls, 139);
        assert!(row.iter().all(|cell| wide.contains(cell)), "{wide}");
        let narrow = render_table(&calls, 70);
        assert!(narrow.contains("DEADLINE_EXCEEDED"), "{narrow}");
        assert!(!narrow.contains("connection"), "{narrow}");
    }
}
