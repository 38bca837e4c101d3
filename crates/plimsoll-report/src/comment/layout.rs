//! Lays out the sections of a comment within its maximum number of lines.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::markdown::escape_cell;
use crate::quantity::plural;

/// Maximum number of lines of a comment: 30 less two, for a link to the job and the blank line above the link.
pub const MAX_LINES: usize = 28;

/// Maximum number of file names in a comment.
const MAX_FILES: usize = 6;

/// Maximum length of a text in characters: messages of other programs can have any length, and GitHub accepts comments
/// of at most 65,536 characters.
const MAX_TEXT_CHARS: usize = 500;

/// A comment before it is laid out.
pub(super) struct Comment {
    /// The first line, as Markdown.
    pub(super) title: String,
    pub(super) sections: Vec<Section>,
}

/// A list or table whose last items may be left out.
pub(super) struct Section {
    /// The name of an item, in the singular.
    noun: &'static str,
    /// The header of a table; empty for a list.
    head: Vec<String>,
    items: Vec<Item>,
}

/// An item of a list, or a row of a table.
pub(super) struct Item {
    cells: Vec<String>,
    /// The kind by which omitted items are counted; if empty, they are counted together.
    kind: &'static str,
}

impl Item {
    pub(super) fn new(cells: impl Into<Vec<String>>, kind: &'static str) -> Item {
        let cells = cells.into();
        Item { cells, kind }
    }
}

impl Section {
    /// Creates a section with a list of sentences.
    pub(super) fn sentences(
        noun: &'static str,
        sentences: impl IntoIterator<Item = String>,
    ) -> Section {
        let sentences = sentences.into_iter();
        Section::items(noun, sentences.map(|sentence| Item::new([sentence], "")))
    }

    /// Creates a section with a list of items.
    pub(super) fn items(noun: &'static str, items: impl IntoIterator<Item = Item>) -> Section {
        Section::table(noun, [""; 0], items)
    }

    /// Creates a section with a table.
    pub(super) fn table<S: Into<String>>(
        noun: &'static str,
        head: impl IntoIterator<Item = S>,
        rows: impl IntoIterator<Item = Item>,
    ) -> Section {
        Section {
            noun,
            head: head.into_iter().map(Into::into).collect(),
            items: rows.into_iter().collect(),
        }
    }

    /// Returns the number of lines in addition to the items: the blank line above, and a table's header.
    fn frame_line_count(&self) -> usize {
        if self.head.is_empty() { 1 } else { 3 }
    }

    /// Writes the section in at most [`Section::frame_line_count`] plus `lines` lines.
    fn write(&self, out: &mut String, lines: usize) {
        out.push('\n');
        if !self.head.is_empty() {
            self.write_row(out, &self.head);
            let _ = writeln!(out, "|{}", "---|".repeat(self.head.len()));
        }
        let shown = match self.items.len() {
            all if all <= lines => all,
            _ => lines.saturating_sub(1),
        };
        for item in &self.items[..shown] {
            self.write_row(out, &item.cells);
        }
        let left_out = &self.items[shown..];
        if !left_out.is_empty() {
            let mut cells = vec![self.summarise_omitted(left_out)];
            cells.resize(self.head.len().max(1), String::new());
            self.write_row(out, &cells);
        }
    }

    fn write_row(&self, out: &mut String, cells: &[String]) {
        let cells: Vec<String> = cells
            .iter()
            .map(|text| escape_cell(&shorten(text)))
            .collect();
        let _ = if self.head.is_empty() {
            writeln!(out, "- {}", cells.join(" "))
        } else {
            writeln!(out, "| {} |", cells.join(" | "))
        };
    }

    /// Summarises the omitted items: `and 12 more objectives (10 met, 2 missed)`.
    fn summarise_omitted(&self, left_out: &[Item]) -> String {
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for item in left_out.iter().filter(|item| !item.kind.is_empty()) {
            match kinds.iter_mut().find(|(kind, _)| *kind == item.kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((item.kind, 1)),
            }
        }
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, n)| format!("{n} {kind}"))
            .collect();
        let more = plural(left_out.len() as u64, &format!("more {}", self.noun));
        if kinds.is_empty() {
            format!("and {more}")
        } else {
            format!("and {more} ({})", kinds.join(", "))
        }
    }
}

impl Comment {
    /// Lays the comment out in at most [`MAX_LINES`]. `files`: the files with the complete results.
    pub(super) fn render(mut self, files: &[PathBuf]) -> String {
        self.sections.retain(|section| !section.items.is_empty());
        let closing = files_line(files);
        let closing_lines = if closing.is_empty() { 0 } else { 2 };
        let frames = self.sections.iter().map(Section::frame_line_count);
        let room = MAX_LINES.saturating_sub(1 + closing_lines + frames.sum::<usize>());
        let mut out = format!("{}\n", self.title);
        for (section, lines) in self.sections.iter().zip(divide_lines(&self.sections, room)) {
            section.write(&mut out, lines);
        }
        if !closing.is_empty() {
            let _ = write!(out, "\n{closing}\n");
        }
        out
    }
}

/// Divides `room` lines among the sections: each section that has items left gets one line in turn, so that a long list
/// gets only the lines that shorter ones don't need.
fn divide_lines(sections: &[Section], mut room: usize) -> Vec<usize> {
    let mut shares = vec![0; sections.len()];
    loop {
        let mut is_full = true;
        for (share, section) in shares.iter_mut().zip(sections) {
            if room > 0 && *share < section.items.len() {
                *share += 1;
                room -= 1;
                is_full = false;
            }
        }
        if is_full {
            return shares;
        }
    }
}

/// Returns the line that names the files; empty if there are none.
fn files_line(files: &[PathBuf]) -> String {
    let named = files.iter().take(MAX_FILES);
    let mut named: Vec<String> = named
        .map(|file| escape_cell(&shorten(&file.display().to_string())))
        .collect();
    if let Some(more @ 1..) = files.len().checked_sub(MAX_FILES) {
        named.push(format!("and {more} more"));
    }
    if named.is_empty() {
        String::new()
    } else {
        format!("Complete results: {}", named.join(", "))
    }
}

/// Cuts off a text that is too long.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(items: usize) -> Section {
        let kind = |n| if n % 2 == 0 { "met" } else { "missed" };
        let items = (0..items).map(|n| Item::new([n.to_string()], kind(n)));
        Section::items("objective", items)
    }

    fn render(sections: Vec<Section>) -> String {
        let title = "**title**".to_owned();
        Comment { title, sections }.render(&[PathBuf::from("runs/a_b")])
    }

    #[test]
    fn short_comment_lacks_nothing() {
        let text = render(vec![section(3), section(0)]);
        assert_eq!(
            text,
            "**title**\n\n- 0\n- 1\n- 2\n\nComplete results: runs/a\\_b\n"
        );
    }

    #[test]
    fn long_list_is_cut_and_counted() {
        for items in [24, 25, 1_000] {
            let text = render(vec![section(items)]);
            let is_cut = items > 24;
            assert_eq!(text.lines().count(), MAX_LINES, "{text}");
            assert_eq!(text.contains("more objective"), is_cut, "{text}");
        }
        let text = render(vec![section(1_000)]);
        let left_out = "- and 977 more objectives (489 missed, 488 met)\n";
        assert!(text.contains(left_out), "{text}");
    }

    #[test]
    fn short_sections_survive_beside_long_ones() {
        let text = render(vec![section(1_000), section(4), section(1_000)]);
        assert_eq!(text.lines().count(), MAX_LINES, "{text}");
        assert!(text.contains("\n\n- 0\n- 1\n- 2\n- 3\n\n"), "{text}");
    }

    #[test]
    fn line_feeds_and_long_texts_take_one_line() {
        let text = "a\nb".repeat(1_000);
        let text = render(vec![Section::sentences("problem", [text])]);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.chars().count() < 600, "{text}");
    }
}
