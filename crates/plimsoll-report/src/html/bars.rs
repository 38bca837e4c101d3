//! Bar charts with one row for each bar and the bar's name above it. A bar shows a distance from zero and its interval.

use maud::{Markup, html};

use super::chart::{AxisScale, PlotArea, round_px, x_axis, x_grid};

/// The height of a row, including its name.
const ROW_HEIGHT: f64 = 44.0;

/// A named row of bars.
pub(super) struct BarRow {
    pub(super) name: String,
    /// The row's part of the chart's text alternative.
    pub(super) text_alternative: String,
    pub(super) segments: Vec<BarSegment>,
    /// Lower and upper end of the interval.
    pub(super) interval: Option<[f64; 2]>,
}

/// A bar from one value to another.
pub(super) struct BarSegment {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) colour: usize,
    /// Whether the difference is not significant.
    pub(super) is_pale: bool,
    /// The tooltip.
    pub(super) title: String,
}

pub(super) struct BarChart {
    /// The start of the chart's text alternative; the texts of the rows follow.
    pub(super) lead: String,
    /// The label of the axis.
    pub(super) axis: String,
    /// Formats a value on the axis.
    pub(super) format_tick: fn(f64) -> String,
    /// Values that the axis always includes.
    pub(super) always_included: [f64; 2],
    pub(super) rows: Vec<BarRow>,
}

impl BarChart {
    /// Returns the chart's heights, for wide screens and for narrow ones.
    pub(super) fn heights(&self) -> [f64; 2] {
        [50.0 + ROW_HEIGHT * self.rows.len() as f64; 2]
    }

    pub(super) fn draw(&self, frame: &PlotArea) -> Markup {
        // Names are above their bars, and values at the ends of the axis need some space.
        let frame = PlotArea {
            left: 18.0,
            right: 30.0,
            top: 4.0,
            ..*frame
        };
        let x = self.axis_scale(&frame);
        let marks = x.labelled_ticks(frame.pick_for_width(9, 4), self.format_tick);
        let words: Vec<&str> = self
            .rows
            .iter()
            .map(|row| row.text_alternative.as_str())
            .collect();
        let zero = round_px(x.position(0.0));
        frame.svg(
            &format!("{} {}", self.lead, words.join("; ")),
            &html! {
                (x_grid(&frame, &marks))
                @for (i, row) in self.rows.iter().enumerate() {
                    @let top = frame.top + ROW_HEIGHT * i as f64;
                    text class="strong" x=(frame.left) y=(round_px(top + 15.0)) { (row.name) }
                    @for part in &row.segments { (part.draw(&x, top + 22.0)) }
                    @if let Some(ends) = row.interval {
                        @let [low, high] = ends.map(|end| round_px(x.position(end)));
                        @let (middle, upper) = (round_px(top + 27.5), round_px(top + 23.5));
                        path class="whisker" d={ "M" (low) " " (middle) "H" (high) "M" (low) " " (upper) "v8M" (high) " " (upper) "v8" } {}
                    }
                }
                path class="axis" d={ "M" (zero) " " (frame.top) "V" (round_px(frame.y_end())) } {}
                (x_axis(&frame, &marks, &self.axis))
            },
        )
    }

    /// Returns an axis that includes zero, with some space beyond the ends that are not zero.
    fn axis_scale(&self, frame: &PlotArea) -> AxisScale {
        let parts = self.rows.iter().flat_map(|row| &row.segments);
        let ends = parts.flat_map(|part| [part.from, part.to]);
        let bounds = self.rows.iter().filter_map(|row| row.interval).flatten();
        let all = ends.chain(bounds).chain(self.always_included);
        let (low, high) = all.fold((0.0_f64, 0.0_f64), |(l, h), v| (l.min(v), h.max(v)));
        let room = (high - low) * 0.04;
        let left = if low < 0.0 { low - room } else { 0.0 };
        AxisScale::linear(left, high + room, frame.left, frame.x_end())
    }
}

impl BarSegment {
    fn draw(&self, x: &AxisScale, y: f64) -> Markup {
        let (from, to) = (
            x.position(self.from.min(self.to)),
            x.position(self.from.max(self.to)),
        );
        html! {
            rect class={ "fill c" (self.colour % 6) } opacity=(if self.is_pale { "0.28" } else { "0.85" })
                x=(round_px(from)) y=(round_px(y)) rx="2" width=(round_px((to - from).max(1.0))) height="11" { title { (self.title) } }
        }
    }
}
