//! The slowest calls of a run.

use plimsoll_model::run::Run;

use super::Options;
use super::table::{GAP, Table};
use crate::slowest::{self, HEAD, TEXTS};

pub(super) fn slowest(out: &mut String, run: &Run, options: &Options) {
    let rows = slowest::rows(run);
    if !rows.is_empty() {
        *out += &table(&rows, options.width);
        out.push('\n');
    }
}

/// Trace ids are copied, so no cell is broken: columns that have no room are left out whole.
fn table(rows: &[[String; 6]], width: usize) -> String {
    /// Those that matter least, in the order in which they are left out.
    const SPARE: [usize; 4] = [4, 2, 1, 3];
    let needed = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        GAP + cells.fold(HEAD[column].chars().count(), usize::max)
    };
    let mut shown: Vec<usize> = (0..HEAD.len()).collect();
    for spare in SPARE {
        if shown.iter().map(|column| needed(*column)).sum::<usize>() > width {
            shown.retain(|column| *column != spare);
        }
    }
    let texts = shown.iter().enumerate();
    let texts = texts.filter(|(_, column)| TEXTS.contains(column));
    let texts: Vec<usize> = texts.map(|(place, _)| place).collect();
    let head = shown.iter().map(|column| HEAD[*column]);
    let cells = rows
        .iter()
        .map(|row| shown.iter().map(|column| row[*column].clone()));
    let table = Table::new(width, head, &texts).unbroken().rows(cells);
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_line_at_any_width_and_its_trace_id_is_whole() {
        let trace_id = "0af7651916cd43dd8448eb211c80319c";
        let row = [
            "1.23 s",
            "1.22 s",
            "12.345 s",
            "DEADLINE_EXCEEDED",
            "lost, of worker 11",
            trace_id,
        ];
        let rows = [row.map(str::to_owned)];
        for width in 60..140 {
            let shown = table(&rows, width);
            let lines: Vec<&str> = shown.lines().collect();
            assert_eq!(lines.len(), 2, "{width}: {shown}");
            assert!(lines.iter().all(|line| line.len() <= width), "{shown}");
            assert!(lines[1].contains("1.23 s") && lines[1].ends_with(trace_id));
        }
        let wide = table(&rows, 139);
        assert!(row.iter().all(|cell| wide.contains(cell)), "{wide}");
        let narrow = table(&rows, 70);
        assert!(narrow.contains("DEADLINE_EXCEEDED"), "{narrow}");
        assert!(!narrow.contains("connection"), "{narrow}");
    }
}
