//! Decides when a response is sent: after its delay, and never while the whole server is stalled.

use std::str::FromStr;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::Period;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tokio::time::Instant;

use super::ServeError;
use super::precise_timer::PreciseTimer;

/// The longest accepted delay or stall; a longer one is treated as a typing error.
pub const MAX_DELAY: Duration = Duration::from_secs(24 * 3600);
/// The longest accepted busy-wait before each response.
const MAX_SPIN: Duration = Duration::from_millis(100);

/// The time from reading a request to sending its response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResponseDelay {
    /// A fixed delay.
    Constant(Duration),
    /// A delay drawn uniformly from the range.
    Uniform {
        /// The lower bound.
        from: Duration,
        /// The upper bound.
        to: Duration,
    },
    /// An exponentially distributed delay, the classic service time of a queue.
    Exponential {
        /// The mean.
        mean: Duration,
    },
}

impl ResponseDelay {
    /// Returns the longest delay, or the mean if the delay has no upper bound; used to reject typing errors.
    fn upper_bound_or_mean(self) -> Duration {
        match self {
            ResponseDelay::Constant(delay) => delay,
            ResponseDelay::Uniform { from, to } => from.max(to),
            ResponseDelay::Exponential { mean } => mean,
        }
    }
}

impl FromStr for ResponseDelay {
    type Err = String;

    fn from_str(text: &str) -> Result<ResponseDelay, String> {
        let period = |text: &str| text.parse::<Period>().map(|p| p.0);
        Ok(if let Some(mean) = text.strip_prefix("exp:") {
            ResponseDelay::Exponential {
                mean: period(mean)?,
            }
        } else if let Some((from, to)) = text.split_once("..") {
            ResponseDelay::Uniform {
                from: period(from)?,
                to: period(to)?,
            }
        } else {
            ResponseDelay::Constant(period(text)?)
        })
    }
}

/// One stall of the whole server: responses that are due during the stall are sent at its end.
///
/// For clients this looks like a process that is stopped for a while. The effect on every percentile can be calculated,
/// so it can be compared with the figures of a load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerStall {
    /// Time from the first request to the start of the stall.
    pub after: Duration,
    /// Length of the stall.
    pub duration: Duration,
}

impl FromStr for ServerStall {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerStall, String> {
        let (length, after) = text.split_once('@').ok_or_else(|| {
            format!(
                "`{text}` lacks an @: write \"500ms@5s\" for 500 ms, 5 s after the first request"
            )
        })?;
        let period = |text: &str| match text.parse::<Period>() {
            Ok(period) => Ok(period.0),
            Err(e) => Err(e.to_string()),
        };
        Ok(ServerStall {
            after: period(after)?,
            duration: period(length)?,
        })
    }
}

/// Settings of response times other than the delay: stall, busy-wait and seed.
#[derive(Args, Clone, Copy, Debug)]
pub struct ResponseTiming {
    /// Freeze all answers once for the time FOR, starting when the time AFTER has passed since the first request:
    /// "500ms@5s".
    #[arg(long, value_name = "FOR@AFTER")]
    pub stall: Option<ServerStall>,

    /// Busy-wait this long before an answer is due, for precision; "0s" saves CPU.
    #[arg(long, value_name = "TIME", default_value = "50us")]
    pub spin: Period,

    /// The seed of random choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// The scheduler that decides when each response is sent, and delays it until then.
pub struct ResponseScheduler {
    delay: ResponseDelay,
    stall: Option<ServerStall>,
    timer: PreciseTimer,
    first_request: OnceLock<Instant>,
    random: Mutex<ChaCha8Rng>,
}

impl ResponseScheduler {
    /// Makes a scheduler. Must be called inside the tokio runtime.
    ///
    /// # Errors
    /// When a time is too long, the delay's range is empty, or the kernel refuses a timer.
    pub fn new(
        delay: ResponseDelay,
        ResponseTiming { stall, spin, seed }: ResponseTiming,
    ) -> Result<ResponseScheduler, ServeError> {
        let stall_end = stall.map_or(Duration::ZERO, |s| s.after.saturating_add(s.duration));
        for (option, time, limit) in [
            ("delay", delay.upper_bound_or_mean(), MAX_DELAY),
            ("stall", stall_end, MAX_DELAY),
            ("spin", spin.0, MAX_SPIN),
        ] {
            if time > limit {
                return Err(ServeError::invalid_option(
                    option,
                    format!("{time:?} is too long; at most {limit:?}"),
                ));
            }
        }
        if let ResponseDelay::Uniform { from, to } = delay
            && from > to
        {
            return Err(ServeError::invalid_option(
                "delay",
                format!("the range {from:?} to {to:?} is reversed: write the smaller value first"),
            ));
        }
        let alarms = PreciseTimer::new(spin.0).map_err(ServeError::io("creating a timer"))?;
        Ok(ResponseScheduler {
            delay,
            stall,
            timer: alarms,
            first_request: OnceLock::new(),
            random: Mutex::new(ChaCha8Rng::seed_from_u64(seed)),
        })
    }

    /// Waits until the response to a request that was just read may be sent.
    pub async fn wait(&self) {
        let now = Instant::now();
        let first = *self.first_request.get_or_init(|| now);
        let due = adjust_for_stall(now + self.draw_delay(), first, self.stall);
        if due > now {
            self.timer.sleep_until(due).await;
        }
    }

    /// Sleeps for `time`, exact to tens of microseconds.
    pub async fn sleep(&self, time: Duration) {
        self.timer.sleep_until(Instant::now() + time).await;
    }

    /// Returns a random number, uniformly distributed in [0, 1).
    pub fn random_fraction(&self) -> f64 {
        let bits = self
            .random
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .next_u64();
        // Uses the 53 bits that a double holds exactly.
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    fn draw_delay(&self) -> Duration {
        match self.delay {
            ResponseDelay::Constant(delay) => delay,
            ResponseDelay::Uniform { from, to } => {
                from + (to - from).mul_f64(self.random_fraction())
            }
            ResponseDelay::Exponential { mean } => {
                mean.mul_f64(-(1.0 - self.random_fraction()).ln())
            }
        }
    }
}

fn adjust_for_stall(due: Instant, first: Instant, stall: Option<ServerStall>) -> Instant {
    let Some(stall) = stall else { return due };
    let start = first + stall.after;
    let end = start + stall.duration;
    if due >= start && due < end { end } else { due }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn responses_wait_for_stall_end() {
        let first = Instant::now();
        let ms = |n| first + Duration::from_millis(n);
        let stall = Some(ServerStall {
            after: Duration::from_millis(100),
            duration: Duration::from_millis(50),
        });
        for (due, expected) in [(99, 99), (100, 150), (149, 150), (150, 150), (151, 151)] {
            assert_eq!(
                adjust_for_stall(ms(due), first, stall),
                ms(expected),
                "due at {due}"
            );
            assert_eq!(adjust_for_stall(ms(due), first, None), ms(due));
        }
    }

    #[tokio::test]
    async fn delays_follow_their_distribution() {
        let answers = |stall, spin| ResponseTiming {
            stall,
            spin: Period(spin),
            seed: 7,
        };
        let draw = |delay| {
            let answering = ResponseScheduler::new(delay, answers(None, Duration::ZERO)).unwrap();
            let mut all: Vec<f64> = (0..20_000)
                .map(|_| answering.draw_delay().as_secs_f64() * 1e3)
                .collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let ms = Duration::from_millis;
        let uniform = draw(ResponseDelay::Uniform {
            from: ms(2),
            to: ms(6),
        });
        assert!(uniform[0] >= 2.0 && uniform[19_999] <= 6.0);
        assert!((uniform[10_000] - 4.0).abs() < 0.1, "{}", uniform[10_000]);
        let exponential = draw(ResponseDelay::Exponential { mean: ms(5) });
        // The median of an exponential distribution is its mean times ln 2.
        assert!(
            (exponential[10_000] - 5.0 * 2f64.ln()).abs() < 0.15,
            "{}",
            exponential[10_000]
        );
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        for (delay, stall, spin) in [
            (ResponseDelay::Constant(century), None, Duration::ZERO),
            (
                ResponseDelay::Constant(ms(1)),
                Some(ServerStall {
                    after: Duration::MAX,
                    duration: ms(1),
                }),
                Duration::ZERO,
            ),
            (ResponseDelay::Constant(ms(1)), None, century),
        ] {
            let error = ResponseScheduler::new(delay, answers(stall, spin))
                .err()
                .unwrap();
            assert!(error.to_string().contains("too long"), "{error}");
        }
        assert!(
            ResponseScheduler::new(
                ResponseDelay::Uniform {
                    from: ms(6),
                    to: ms(2)
                },
                answers(None, Duration::ZERO)
            )
            .is_err()
        );
    }
}
