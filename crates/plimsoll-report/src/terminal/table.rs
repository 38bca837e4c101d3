//! Columns that line up, within the terminal's width.

use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, presets};

/// Characters between two columns.
pub(super) const GAP: usize = 2;

/// A table without lines: a head, rows, two spaces between columns.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// Columns at `texts` begin at the left; the others are numbers, which end at the right.
    pub(crate) fn new<S: Into<String>>(
        width: usize,
        head: impl IntoIterator<Item = S>,
        texts: &[usize],
    ) -> Table {
        let head: Vec<String> = head.into_iter().map(Into::into).collect();
        let mut table = comfy_table::Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX))
            .set_header(head);
        for (i, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, GAP as u16));
            if texts.contains(&i) {
                column.set_cell_alignment(CellAlignment::Left);
            } else {
                // A number broken over two lines is no number.
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        Table(table)
    }

    /// Breaks no cell of any column, however narrow the terminal is: for names that people
    /// search for and programs read.
    pub(crate) fn unbroken(mut self) -> Table {
        for column in self.0.column_iter_mut() {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        self
    }

    pub(crate) fn rows<R: IntoIterator<Item = String>>(
        mut self,
        rows: impl IntoIterator<Item = R>,
    ) -> Table {
        self.0.add_rows(rows);
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `text` in lines of at most `width` characters, broken at spaces, but not between a number
/// and its unit. A longer word has a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    const UNITS: [&str; 9] = ["s", "ms", "µs", "ns", "B", "kB", "MB", "GB", "%"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let unit = word.trim_end_matches([',', '.', ';', ':', ')']);
        match words.last_mut() {
            Some(number)
                if number.ends_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit) =>
            {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in &words {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("extraordinary", 5), ["extraordinary"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("after 1.00 s, then", 11), ["after", "1.00 s,", "then"]);
    }
}
