//! Draws a table whose figures are never cut: columns are as wide as their content, and columns that don't fit are left
//! out, the last first. The names in the first column may be shortened.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use super::{DIM_STYLE, panel, shorten};

/// Minimum width of the name column.
const MIN_NAME_WIDTH: usize = 7;

/// A row of the table: a name and figures.
pub(super) struct GridRow {
    cells: Vec<String>,
    style: Style,
}

impl GridRow {
    pub(super) fn new(cells: impl IntoIterator<Item = String>, style: Style) -> GridRow {
        GridRow {
            cells: cells.into_iter().collect(),
            style,
        }
    }
}

/// A table of names and figures under a title.
pub(super) struct Grid<'a> {
    pub(super) title: &'a str,
    /// Column heads; empty for a table without heads.
    pub(super) head: &'a [&'a str],
    /// Minimum width of a column of figures if there is enough room, so that columns don't move when figures change.
    pub(super) min_width: usize,
    pub(super) entries: Vec<GridRow>,
}

impl Grid<'_> {
    pub(super) fn draw(self, frame: &mut Frame<'_>, area: Rect) {
        let widths = self.widths(usize::from(area.width));
        let name = widths.first().copied().unwrap_or(0);
        let cell = |i: usize, text: &str| match i {
            0 => Cell::from(shorten(text, name)),
            _ => Cell::from(Line::from(text.to_owned()).right_aligned()),
        };
        let row = |cells: Vec<&str>| {
            let shown = cells.into_iter().enumerate().take(widths.len());
            Row::new(shown.map(|(i, text)| cell(i, text)).collect::<Vec<_>>())
        };
        let rows = self
            .entries
            .iter()
            .map(|entry| row(entry.cells.iter().map(String::as_str).collect()).style(entry.style));
        let constraints = widths.iter().map(|w| Constraint::Length(*w as u16));
        let title = format!("{} ", self.title);
        let mut table = Table::new(rows.collect::<Vec<_>>(), constraints.collect::<Vec<_>>())
            .column_spacing(1)
            .block(panel(&title));
        if !self.head.is_empty() {
            table = table.header(row(self.head.to_vec()).style(DIM_STYLE));
        }
        frame.render_widget(table, area);
    }

    /// Returns the widths of the name column and of the columns of figures that fit into `room` terminal columns.
    fn widths(&self, room: usize) -> Vec<usize> {
        let heads = std::iter::once(self.head.to_vec());
        let lines = self
            .entries
            .iter()
            .map(|e| e.cells.iter().map(String::as_str).collect());
        let lines: Vec<Vec<&str>> = heads.chain(lines).collect();
        let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
        let needed = |i: usize| {
            let cells = lines.iter().filter_map(|cells| cells.get(i));
            cells.map(|text| super::text_width(text)).max().unwrap_or(0)
        };
        let name = needed(0);
        let mut widths = vec![name.min(MIN_NAME_WIDTH)];
        let mut left = room.saturating_sub(widths[0]);
        for column in 1..columns {
            let wide = needed(column);
            if wide + 1 > left {
                break;
            }
            widths.push(wide);
            left -= wide + 1;
        }
        // Use spare width for the name column first, then for the minimum widths of the other columns.
        let more = left.min(name - widths[0]);
        widths[0] += more;
        left -= more;
        for width in widths.iter_mut().skip(1) {
            let more = left.min(self.min_width.saturating_sub(*width));
            *width += more;
            left -= more;
        }
        widths
    }
}
