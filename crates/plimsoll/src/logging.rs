//! Logs to stderr: `-v`, `--trace`, `--log-format`.
//!
//! A server that can't reach its bus would log at every request, so each call site may write a limited number of
//! messages per period. Suppressed messages are counted, and the count is written with the next one. With `-v` or
//! `--trace` nothing is suppressed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_engine::clock::Clock;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::console;

/// How messages are written: lines for people, or a JSON object a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// Maximum number of messages of one call site per period.
const MAX_MESSAGES: u64 = 10;
const THROTTLE_PERIOD: Duration = Duration::from_secs(5);

/// Starts logging at this level.
pub(crate) fn start(level: LevelFilter, format: Format) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| console::LogWriter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false);
    let throttle = (level == LevelFilter::WARN).then_some(Throttled);
    THROTTLE.get_or_init(|| Throttle::new(format));
    let registry = tracing_subscriber::registry().with(level);
    match format {
        Format::Text => registry.with(lines).with(throttle).init(),
        Format::Json => {
            console::in_json();
            registry.with(lines.json()).with(throttle).init();
        }
    }
}

/// Writes the number of suppressed messages not yet reported.
pub(crate) fn conclude() {
    if let Some(throttle) = THROTTLE.get() {
        let left_out = throttle.lock().values().map(Place::left_out).sum();
        throttle.report("WARN", left_out);
    }
}

static THROTTLE: OnceLock<Throttle> = OnceLock::new();

/// Subscriber layer that applies the process's throttle.
struct Throttled;

/// Limits the messages of each call site.
struct Throttle {
    format: Format,
    clock: Clock,
    places: Mutex<HashMap<Identifier, Place>>,
}

/// Number of messages of a call site in the current period.
struct Place {
    began_ns: u64,
    came: u64,
}

impl Place {
    /// Counts a message. Returns whether to write it, and how many suppressed messages of the last period to report.
    fn comes(&mut self, now_ns: u64) -> (bool, u64) {
        let mut left_out = 0;
        if now_ns - self.began_ns >= THROTTLE_PERIOD.as_nanos() as u64 {
            left_out = self.left_out();
            (self.began_ns, self.came) = (now_ns, 0);
        }
        self.came += 1;
        (self.came <= MAX_MESSAGES, left_out)
    }

    fn left_out(&self) -> u64 {
        self.came.saturating_sub(MAX_MESSAGES)
    }
}

impl Throttle {
    fn new(format: Format) -> Throttle {
        Throttle {
            format,
            clock: Clock::new(),
            places: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn comes(&self, what: &'static Metadata<'static>) -> (bool, u64) {
        let now_ns = self.clock.now().0;
        let mut places = self.lock();
        let place = places.entry(what.callsite()).or_insert(Place {
            began_ns: now_ns,
            came: 0,
        });
        // Another thread may have started a later period meanwhile.
        place.comes(now_ns.max(place.began_ns))
    }

    fn report(&self, level: &str, left_out: u64) {
        if left_out == 0 {
            return;
        }
        let text = format!("omitted {left_out} more of these");
        let at = jiff::Timestamp::now();
        console::line(match self.format {
            Format::Text => format!("{at} {level:>5} {text}"),
            Format::Json => console::json_line(level, &text),
        });
    }
}

impl<S: Subscriber> Layer<S> for Throttled {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let Some(throttle) = THROTTLE.get() else {
            return true;
        };
        let what = event.metadata();
        let (written, left_out) = throttle.comes(what);
        throttle.report(what.level().as_str(), left_out);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_rate_limit_counts_suppressed_messages() {
        let second = 1_000_000_000;
        let mut place = Place {
            began_ns: 0,
            came: 0,
        };
        let mut of_a_thousand = |from: u64| {
            let each: Vec<(bool, u64)> = (0..1000).map(|n| place.comes(from + n)).collect();
            let written = each.iter().filter(|(written, _)| *written).count() as u64;
            let reported = each.iter().map(|(_, left_out)| left_out).sum::<u64>();
            (written, reported, place.left_out())
        };
        assert_eq!(of_a_thousand(0), (MAX_MESSAGES, 0, 1000 - MAX_MESSAGES));
        assert_eq!(of_a_thousand(2 * second), (0, 0, 2000 - MAX_MESSAGES));
        assert_eq!(
            of_a_thousand(6 * second),
            (MAX_MESSAGES, 2000 - MAX_MESSAGES, 1000 - MAX_MESSAGES)
        );
        assert_eq!(
            of_a_thousand(60 * second),
            (MAX_MESSAGES, 1000 - MAX_MESSAGES, 1000 - MAX_MESSAGES)
        );
    }
}
