//! Random pauses before attempts to connect again.

use std::time::Duration;

use super::xorshift::Xorshift;

/// Pauses with full jitter: uniform between zero and a bound, which doubles with each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The longest pause before the first attempt.
    pub(crate) first: Duration,
    /// The longest pause before any attempt.
    pub(crate) max: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_secs(1),
            max: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// Draws the pause before an attempt. `attempts`: the number of attempts before it.
    pub(crate) fn draw_pause(&self, attempts: u32, random: &mut Xorshift) -> Duration {
        let longest = self.first.saturating_mul(2u32.saturating_pow(attempts));
        let share = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        longest.min(self.max).mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_longest() {
        let backoff = Backoff {
            first: Duration::from_millis(10),
            max: Duration::from_millis(35),
        };
        let mut random = Xorshift::new(7);
        for (attempts, bound) in [(0, 10), (1, 20), (2, 35), (40, 35)] {
            let drawn: Vec<Duration> = (0..1_000)
                .map(|_| backoff.draw_pause(attempts, &mut random))
                .collect();
            let longest = drawn.iter().max().copied().unwrap_or_default();
            let bound = Duration::from_millis(bound);
            assert!(
                longest <= bound && longest > bound.mul_f64(0.9),
                "{longest:?}"
            );
            assert!(drawn.iter().any(|pause| *pause < bound.mul_f64(0.1)));
        }
    }
}
