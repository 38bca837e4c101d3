//! Renders tables with aligned columns, within the terminal's width.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, presets};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use crate::sections::table::TextTable;

/// Characters between two columns.
pub(super) const COLUMN_GAP: usize = 2;

impl TextTable {
    /// Renders the table without ruled lines: a header, rows, and two spaces between columns. Text may be wrapped;
    /// numbers are not.
    pub(crate) fn render(&self, width: usize) -> String {
        self.render_with(width, |table, column| !table.is_text(column))
    }

    /// Renders the table without wrapping any cell, however narrow the terminal is, for names that people search for
    /// and programs read.
    pub(crate) fn render_unwrapped(&self, width: usize) -> String {
        self.render_with(width, |_, _| true)
    }

    fn render_with(&self, width: usize, is_whole: fn(&TextTable, usize) -> bool) -> String {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX));
        if self.head.iter().any(|name| !name.is_empty()) {
            table.set_header(&self.head);
        }
        table.add_rows(&self.rows);
        for (i, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, COLUMN_GAP as u16));
            column.set_cell_alignment(if self.is_text(i) {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
            if is_whole(self, i) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
        lines.collect()
    }
}

/// Wraps `text` to lines of at most `width` columns at spaces, but not between a number and its unit. A word that is
/// longer gets its own line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    const UNITS: [&str; 9] = ["s", "ms", "µs", "ns", "B", "kB", "MB", "GB", "%"];
    // Replaces spaces at which a line must not be broken.
    const NO_BREAK_SPACE: char = '\u{a0}';
    let mut glued = String::with_capacity(text.len());
    for (i, word) in text.split(' ').enumerate() {
        let unit = word.trim_end_matches([',', '.', ';', ':', ')']);
        let is_unit = glued.ends_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit);
        glued.extend((i > 0).then_some(if is_unit { NO_BREAK_SPACE } else { ' ' }));
        glued += word;
    }
    let options = Options::new(width)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    let lines = textwrap::wrap(&glued, options).into_iter();
    lines
        .map(|line| line.replace(NO_BREAK_SPACE, " "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("extraordinary", 5), ["extraordinary"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("压力 测试", 7), ["压力", "测试"]);
        assert_eq!(wrap("after 1.00 s, then", 11), ["after", "1.00 s,", "then"]);
    }
}
