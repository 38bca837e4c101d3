//! Logs to stderr: `-v`, `--trace`, `--log-format`.
//!
//! A server that can't reach its bus would log on every request, so each call site may write a limited number of
//! messages per period. Suppressed messages are counted, and the count is written before the next message of that call
//! site. With `-v` or `--trace` no message is suppressed.

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

use crate::screen::console;

/// How messages are written: lines of text, or one JSON object per line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Maximum number of messages of one call site per period.
const MAX_MESSAGES_PER_PERIOD: u64 = 10;
const THROTTLE_PERIOD: Duration = Duration::from_secs(5);

/// Starts logging at this level.
pub(crate) fn start(level: LevelFilter, format: LogFormat) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| console::LogWriter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false);
    let throttle = (level == LevelFilter::WARN).then_some(ThrottleLayer);
    THROTTLE.get_or_init(|| LogThrottle::new(format));
    let registry = tracing_subscriber::registry().with(level);
    match format {
        LogFormat::Text => registry.with(lines).with(throttle).init(),
        LogFormat::Json => {
            console::print_lines_as_json();
            registry.with(lines.json()).with(throttle).init();
        }
    }
}

/// Writes the counts of suppressed messages that have not been reported yet.
pub(crate) fn report_suppressed() {
    if let Some(throttle) = THROTTLE.get() {
        let left_out = throttle
            .lock_call_sites()
            .values()
            .map(CallsiteCount::suppressed_count)
            .sum();
        throttle.print_suppressed_count("WARN", left_out);
    }
}

static THROTTLE: OnceLock<LogThrottle> = OnceLock::new();

/// Subscriber layer that applies [`THROTTLE`].
struct ThrottleLayer;

/// Limiter of the messages of each call site.
struct LogThrottle {
    format: LogFormat,
    clock: Clock,
    call_sites: Mutex<HashMap<Identifier, CallsiteCount>>,
}

/// The number of messages of one call site in the current period.
struct CallsiteCount {
    began_ns: u64,
    messages: u64,
}

impl CallsiteCount {
    /// Counts a message. Returns whether to write the message, and how many suppressed messages of the last period to
    /// report.
    fn admit(&mut self, now_ns: u64) -> (bool, u64) {
        let mut left_out = 0;
        if now_ns - self.began_ns >= THROTTLE_PERIOD.as_nanos() as u64 {
            left_out = self.suppressed_count();
            (self.began_ns, self.messages) = (now_ns, 0);
        }
        self.messages += 1;
        (self.messages <= MAX_MESSAGES_PER_PERIOD, left_out)
    }

    fn suppressed_count(&self) -> u64 {
        self.messages.saturating_sub(MAX_MESSAGES_PER_PERIOD)
    }
}

impl LogThrottle {
    fn new(format: LogFormat) -> LogThrottle {
        LogThrottle {
            format,
            clock: Clock::new(),
            call_sites: Mutex::default(),
        }
    }

    fn lock_call_sites(&self) -> MutexGuard<'_, HashMap<Identifier, CallsiteCount>> {
        self.call_sites
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, what: &'static Metadata<'static>) -> (bool, u64) {
        let now_ns = self.clock.now().0;
        let mut places = self.lock_call_sites();
        let place = places.entry(what.callsite()).or_insert(CallsiteCount {
            began_ns: now_ns,
            messages: 0,
        });
        // Another thread may have started a period after `now_ns` was read, so never go back in time.
        place.admit(now_ns.max(place.began_ns))
    }

    fn print_suppressed_count(&self, level: &str, left_out: u64) {
        if left_out == 0 {
            return;
        }
        let text = format!("omitted {left_out} more messages like this");
        let at = jiff::Timestamp::now();
        console::print_line(match self.format {
            LogFormat::Text => format!("{at} {level:>5} {text}"),
            LogFormat::Json => console::json_line(level, &text),
        });
    }
}

impl<S: Subscriber> Layer<S> for ThrottleLayer {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let Some(throttle) = THROTTLE.get() else {
            return true;
        };
        let what = event.metadata();
        let (written, left_out) = throttle.admit(what);
        throttle.print_suppressed_count(what.level().as_str(), left_out);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_rate_limit_counts_suppressed_messages() {
        let second = 1_000_000_000;
        let mut place = CallsiteCount {
            began_ns: 0,
            messages: 0,
        };
        let mut of_a_thousand = |from: u64| {
            let each: Vec<(bool, u64)> = (0..1000).map(|n| place.admit(from + n)).collect();
            let written = each.iter().filter(|(written, _)| *written).count() as u64;
            let reported = each.iter().map(|(_, left_out)| left_out).sum::<u64>();
            (written, reported, place.suppressed_count())
        };
        assert_eq!(
            of_a_thousand(0),
            (MAX_MESSAGES_PER_PERIOD, 0, 1000 - MAX_MESSAGES_PER_PERIOD)
        );
        assert_eq!(
            of_a_thousand(2 * second),
            (0, 0, 2000 - MAX_MESSAGES_PER_PERIOD)
        );
        assert_eq!(
            of_a_thousand(6 * second),
            (
                MAX_MESSAGES_PER_PERIOD,
                2000 - MAX_MESSAGES_PER_PERIOD,
                1000 - MAX_MESSAGES_PER_PERIOD
            )
        );
        assert_eq!(
            of_a_thousand(60 * second),
            (
                MAX_MESSAGES_PER_PERIOD,
                1000 - MAX_MESSAGES_PER_PERIOD,
                1000 - MAX_MESSAGES_PER_PERIOD
            )
        );
    }
}
