//! Elements of charts: a plot area with margins, scales with round ticks, axes, legends.

use maud::{Markup, html};

/// The plot area and its margins, in SVG units (pixels at full width).
#[derive(Clone, Copy, Debug)]
pub(super) struct PlotArea {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl PlotArea {
    /// Returns the area for wide screens (desktop).
    pub(super) const fn wide(height: f64) -> PlotArea {
        PlotArea {
            width: 1000.0,
            height,
            left: 64.0,
            right: 18.0,
            top: 14.0,
            bottom: 40.0,
        }
    }

    /// Returns the area for narrow screens (phone).
    pub(super) const fn narrow(height: f64) -> PlotArea {
        PlotArea {
            width: 340.0,
            height,
            left: 62.0,
            right: 8.0,
            top: 12.0,
            bottom: 38.0,
        }
    }

    pub(super) fn is_narrow(&self) -> bool {
        self.width < 500.0
    }

    /// Returns `wide` on wide screens and `narrow` on narrow ones.
    pub(super) fn pick_for_width<T>(&self, wide: T, narrow: T) -> T {
        if self.is_narrow() { narrow } else { wide }
    }

    pub(super) fn x_end(&self) -> f64 {
        self.width - self.right
    }

    pub(super) fn y_end(&self) -> f64 {
        self.height - self.bottom
    }

    /// Returns the SVG element; `label` is its text alternative.
    pub(super) fn svg(&self, label: &str, content: &Markup) -> Markup {
        html! {
            svg class="plot" viewBox={ "0 0 " (self.width) " " (self.height) }
                role="img" aria-label=(label) { (content) }
        }
    }
}

/// A mapping from values to positions in a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisScale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl AxisScale {
    /// Returns a linear scale with exactly these ends.
    pub(super) fn linear(low: f64, high: f64, from: f64, to: f64) -> AxisScale {
        let high = if high > low { high } else { low + 1.0 };
        AxisScale {
            low,
            high,
            from,
            to,
            is_log: false,
        }
    }

    /// Returns a logarithmic scale with some space at both ends. Values must be positive.
    pub(super) fn log(low: f64, high: f64, from: f64, to: f64) -> AxisScale {
        let low = low.max(1e-9);
        let high = high.max(low * 1.5);
        AxisScale {
            low: low / 1.15,
            high: high * 1.15,
            from,
            to,
            is_log: true,
        }
    }

    pub(super) fn position(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns about `most` round values within the scale, formatted by `show`.
    pub(super) fn labelled_ticks(
        &self,
        most: usize,
        show: impl Fn(f64) -> String,
    ) -> Vec<AxisTick> {
        let ticks = self.ticks(most).into_iter();
        ticks
            .map(|value| (self.position(value), show(value)))
            .collect()
    }

    /// Returns about `most` round values within the scale.
    fn ticks(&self, most: usize) -> Vec<f64> {
        if self.is_log {
            let all = |steps: &[f64]| -> Vec<f64> {
                let first = self.low.log10().floor() as i32;
                let last = self.high.log10().ceil() as i32;
                (first..=last)
                    .flat_map(|e| steps.iter().map(move |s| s * 10_f64.powi(e)))
                    .filter(|v| (self.low..=self.high).contains(v))
                    .collect()
            };
            let choices: [&[f64]; 4] = [
                &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
                &[1.0, 2.0, 3.0, 5.0],
                &[1.0, 3.0],
                &[1.0],
            ];
            return choices
                .iter()
                .map(|steps| all(steps))
                .find(|ticks| ticks.len() <= most)
                .unwrap_or_else(|| all(&[1.0]));
        }
        let rough = (self.high - self.low) / most.max(1) as f64;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|s| s * unit)
            .find(|s| *s >= rough)
            .unwrap_or(unit * 10.0);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        // 3 × 0.2 is not exactly 0.6 in binary, so ticks are rounded.
        (first..=last)
            .map(|i| ((i as f64 * step) / unit * 10.0).round() * unit / 10.0)
            .collect()
    }
}

/// The position of a value, and its label.
pub(super) type AxisTick = (f64, String);

/// Draws horizontal grid lines with their values at the left.
pub(super) fn y_axis(
    frame: &PlotArea,
    scale: &AxisScale,
    most: usize,
    show: impl Fn(f64) -> String,
) -> Markup {
    html! {
        @for (y, text) in scale.labelled_ticks(most, show) {
            @let y = round_px(y);
            path class="grid" d={ "M" (frame.left) " " (y) "H" (frame.x_end()) } {}
            text x=(frame.left - 8.0) y=(y) dy="0.35em" text-anchor="end" { (text) }
        }
    }
}

/// Draws vertical grid lines.
pub(super) fn x_grid(frame: &PlotArea, marks: &[AxisTick]) -> Markup {
    html! {
        @for (at, _) in marks { path class="grid" d={ "M" (round_px(*at)) " " (frame.top) "V" (round_px(frame.y_end())) } {} }
    }
}

/// Draws the values below the chart, and the title of the axis.
pub(super) fn x_axis(frame: &PlotArea, ticks: &[AxisTick], title: &str) -> Markup {
    let y = frame.y_end();
    html! {
        path class="axis" d={ "M" (frame.left) " " (round_px(y)) "H" (frame.x_end()) } {}
        @for (x, text) in ticks {
            path class="axis" d={ "M" (round_px(*x)) " " (round_px(y)) "v4" } {}
            text x=(round_px(*x)) y=(round_px(y + 17.0)) text-anchor="middle" { (text) }
        }
        text x=(round_px(f64::midpoint(frame.left, frame.x_end()))) y=(round_px(y + 34.0)) text-anchor="middle" { (title) }
    }
}

/// Formats a value on an axis without rounding it visibly: 1.25 must not become 1.2.
pub(super) fn format_tick(value: f64) -> String {
    ((value * 1000.0).round() / 1000.0).to_string()
}

/// Formats a round time in µs on an axis, in few characters.
pub(super) fn format_short_time(us: f64) -> String {
    let (value, unit) = match us {
        a if a < 999.5 => (us, "µs"),
        a if a < 999_500.0 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    format!("{} {unit}", format_tick(value))
}

/// Returns an SVG path through points.
pub(super) fn svg_path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut d = String::new();
    for (x, y) in points {
        d += if d.is_empty() { "M" } else { "L" };
        d += &format!("{} {}", round_px(x), round_px(y));
    }
    d
}

/// Rounds to a tenth of a pixel, which is finer than the eye can see.
pub(super) fn round_px(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The symbol of a legend's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegendKey {
    Line,
    Dash,
    Block,
    Dot,
    Cross,
    Ring,
}

/// Returns the legend: label, colour (0–5) and symbol of each entry.
pub(super) fn legend(entries: &[(String, usize, LegendKey)]) -> Markup {
    html! {
        ul.legend {
            @for (name, colour, key) in entries {
                li {
                    svg width="22" height="12" aria-hidden="true" class={ "c" (colour % 6) } {
                        @match key {
                            LegendKey::Line => path class="line stroke" d="M1 6H21" {},
                            LegendKey::Dash => path class="line dash stroke" d="M1 6H21" {},
                            LegendKey::Block => rect class="fill" x="4" y="1" width="14" height="10" rx="2" opacity="0.6" {},
                            LegendKey::Dot => circle class="fill" cx="11" cy="6" r="4.5" {},
                            LegendKey::Cross => path class="line stroke" d="M7 2l8 8m0-8l-8 8" {},
                            LegendKey::Ring => circle class="stroke" cx="11" cy="6" r="4" fill="none" stroke-width="2" {},
                        }
                    }
                    (name)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = AxisScale::linear(0.0, 47.0, 0.0, 100.0);
        assert_eq!(scale.ticks(5), [0.0, 10.0, 20.0, 30.0, 40.0]);
        let scale = AxisScale::log(2.0, 800.0, 0.0, 100.0);
        assert_eq!(scale.ticks(4), [10.0, 100.0]);
        assert!(scale.ticks(9).len() > 4);
        // No label may claim another value than its tick's.
        for step in [1.0, 2.0, 2.5, 5.0] {
            for exponent in -2..7 {
                let value = 3.0 * step * 10_f64.powi(exponent);
                let read: f64 = format_tick(value).parse().expect("a number");
                assert!(
                    (read / value - 1.0).abs() < 1e-9,
                    "{value} is labelled {read}"
                );
            }
        }
        // Nothing measured, one value, or all the same must still give a scale.
        for scale in [
            AxisScale::linear(5.0, 5.0, 0.0, 1.0),
            AxisScale::log(0.0, 0.0, 0.0, 1.0),
        ] {
            assert!(scale.position(5.0).is_finite() && scale.ticks(5).len() < 30);
        }
    }
}
