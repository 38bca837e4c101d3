//! Slices of a sweep in pieces: each link's time is divided into short runs, in random order within rounds, so
//! that a moment in which the machine is slow falls on all links alike. The pieces' figures make an interval.

use std::time::Duration;

use super::ALPHA;
use crate::statistics::paired::{fewest_pairs, paired};

/// Rounds beyond those that an interval needs at least: the widest values then are not its bounds.
pub const MORE_ROUNDS: usize = 4;

/// Figures of a link that have an interval: what it carries a second, and cryptography's share at both ends.
const FIGURES: usize = 3;

/// The shortest piece.
const SHORTEST: Duration = Duration::from_millis(100);

/// What a closed loop has in flight at a piece's start and end counts in part only: a piece is so
/// many times longer than files take at a usual speed.
const FILES: f64 = 20.0;
const BYTES_PER_S: f64 = 1e9;

/// How many pieces each of the `rounds` slices of a link is divided into: so many that `links` of them have
/// intervals. `in_flight`: bytes of the files that it fetches at the same time.
pub fn pieces(slice: Duration, rounds: usize, links: usize, in_flight: u64) -> usize {
    let files_ms = (FILES * 1e3 * in_flight as f64 / BYTES_PER_S) as u64;
    let most = slice.as_millis() / SHORTEST.max(Duration::from_millis(files_ms)).as_millis();
    let wanted = fewest_pairs(alpha(links)) + MORE_ROUNDS;
    wanted.div_ceil(rounds.max(1)).min(most as usize).max(1)
}

/// Whether a link with `own` of `rounds` rounds takes part in this one (from 0): its rounds are spread evenly.
pub fn takes_part(round: usize, own: usize, rounds: usize) -> bool {
    (round + 1) * own / rounds > round * own / rounds
}

/// A figure of a link, with its interval where it has enough pieces; the intervals of all links hold together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// In its own unit.
    pub value: f64,
    /// Its ends; `None`: too few pieces.
    pub interval: Option<[f64; 2]>,
}

impl Figure {
    /// `total`: what all pieces together say, where these are too few. `links`: of the sweep.
    pub fn of(
        total: Option<f64>,
        pieces: impl Iterator<Item = f64>,
        links: usize,
    ) -> Option<Figure> {
        match paired(&pieces.collect::<Vec<f64>>(), alpha(links)) {
            Some(found) => Some(Figure {
                value: found.shift,
                interval: Some([found.low, found.high]),
            }),
            None => total.map(|value| Figure {
                value,
                interval: None,
            }),
        }
    }

    /// How far the interval reaches at most, as a share of the value.
    pub fn spread(&self) -> Option<f64> {
        let [low, high] = self.interval.filter(|_| self.value > 0.0)?;
        Some((high - self.value).max(self.value - low) / self.value)
    }
}

/// How often one interval may miss, so that those of so many links hold together.
fn alpha(links: usize) -> f64 {
    ALPHA / (FIGURES * links.max(1)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_have_as_many_pieces_as_intervals_need_and_large_ones_whole_slices() {
        let of = |slice_ms, rounds, in_flight| {
            pieces(Duration::from_millis(slice_ms), rounds, 42, in_flight)
        };
        assert_eq!(of(2000, 1, 16 << 10), 18);
        assert_eq!(of(2000, 3, 16 << 10), 6);
        assert_eq!(of(2000, 99, 16 << 10), 1);
        assert_eq!(of(400, 1, 16 << 10), 4);
        assert_eq!(of(1400, 1, 16 << 10), 14);
        assert_eq!(of(2000, 1, 16 << 20), 5);
        assert_eq!(of(2000, 1, 512 << 20), 1);
        assert_eq!(of(0, 1, 0), 1);
    }

    #[test]
    fn rounds_of_a_link_are_spread_and_none_is_lost() {
        for own in 1..=18 {
            let taken: Vec<usize> = (0..18).filter(|r| takes_part(*r, own, 18)).collect();
            assert_eq!(taken.len(), own);
            let widest = taken.windows(2).map(|two| two[1] - two[0]).max();
            assert!(widest.is_none_or(|rounds| rounds <= 18_usize.div_ceil(own)));
        }
    }
}
