//! Slices of a sweep in pieces: each link's time is divided into short runs or turns, in random order within rounds, so
//! that a moment in which the machine is slow falls on all links alike. The pieces' figures make an interval.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ALPHA, Volume};
use crate::statistics::paired::{fewest_pairs, paired};

/// Rounds beyond those that an interval needs at least: the widest values then are not its bounds.
pub const MORE_ROUNDS: usize = 4;

/// Figures of a link that have an interval: what it carries a second, and cryptography's share at both ends.
const FIGURES_PER_LINK: usize = 3;

/// The shortest piece.
const MIN_PIECE_LENGTH: Duration = Duration::from_millis(100);

/// What a closed loop has in flight at a piece's start and end counts in part only: a piece is so
/// many times longer than files take at a usual speed.
const MIN_FILES_PER_PIECE: f64 = 20.0;
const BYTES_PER_S: f64 = 1e9;

/// A new connection's handshake at both ends takes as long, at a usual speed.
const HANDSHAKE_TIME: Duration = Duration::from_micros(250);

/// A piece in which what is in flight at its start and end, so many bytes and handshakes, matters little.
fn shortest(in_flight: u64, handshakes: u32) -> Duration {
    let files = MIN_FILES_PER_PIECE
        * (in_flight as f64 / BYTES_PER_S + f64::from(handshakes) * HANDSHAKE_TIME.as_secs_f64());
    MIN_PIECE_LENGTH.max(Duration::from_millis((files * 1e3) as u64))
}

fn wanted(links: usize) -> usize {
    fewest_pairs(alpha(links)) + MORE_ROUNDS
}

/// The turns that `links` take which are up together, for `length` in all, where so many bytes and handshakes are in
/// flight at most: from a turn's beginning to the next one's, and how many each link has. `None`: too few for intervals.
pub fn turns(
    length: Duration,
    links: usize,
    in_flight: u64,
    handshakes: u32,
) -> Option<(Duration, u32)> {
    let slot = shortest(in_flight, handshakes) * 11 / 10;
    let rounds = length.as_nanos() / (slot.as_nanos() * links.max(1) as u128);
    (rounds >= wanted(links) as u128).then_some((slot, rounds as u32))
}

/// How many pieces each of the `rounds` slices of a link is divided into: so many that `links` of them have
/// intervals. `in_flight`: bytes of the files that it fetches at the same time.
pub fn pieces(slice: Duration, rounds: usize, links: usize, in_flight: u64) -> usize {
    let most = slice.as_millis() / shortest(in_flight, 0).as_millis();
    let wanted = wanted(links).div_ceil(rounds.max(1));
    wanted.min(most as usize).max(1)
}

/// Whether a link with `own` of `rounds` rounds takes part in this one (from 0): its rounds are spread evenly.
pub fn takes_part(round: usize, own: usize, rounds: usize) -> bool {
    (round + 1) * own / rounds > round * own / rounds
}

/// What a link carried in one stretch of time, and what that cost: a slice, or a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Time to the last call's end, seconds.
    pub elapsed_s: f64,
    /// Calls that ended well.
    pub ok: u64,
    /// Bytes of files, without what carried them.
    pub bytes_received: u64,
    /// The client's CPU, µs; `None`: not known.
    pub client_cpu_us: Option<f64>,
    /// The server's CPU, µs; `None`: not known.
    pub server_cpu_us: Option<f64>,
    /// Its last call ended in another link's turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overran: bool,
}

impl Volume {
    /// What it came to turn by turn, and so in all: a link's run lasts through the turns of others.
    pub fn take_turns(&mut self, turns: Vec<Piece>) {
        let cpu = |of: fn(&Piece) -> Option<f64>| turns.iter().map(of).sum();
        self.elapsed_s = turns.iter().map(|turn| turn.elapsed_s).sum();
        self.ok = turns.iter().map(|turn| turn.ok).sum();
        self.bytes_received = turns.iter().map(|turn| turn.bytes_received).sum();
        self.client_cpu_us = cpu(|turn| turn.client_cpu_us);
        self.server_cpu_us = cpu(|turn| turn.server_cpu_us);
        self.turns = turns;
    }

    /// Its turns, or the one slice that it is.
    pub fn pieces(&self) -> Vec<Piece> {
        match self.turns.as_slice() {
            [] => vec![Piece {
                elapsed_s: self.elapsed_s,
                ok: self.ok,
                bytes_received: self.bytes_received,
                client_cpu_us: self.client_cpu_us,
                server_cpu_us: self.server_cpu_us,
                overran: false,
            }],
            turns => turns.to_vec(),
        }
    }
}

/// A figure of a link, with its interval where it has enough pieces; the intervals of all links hold together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The value in the figure's own unit.
    pub value: f64,
    /// The ends of its interval; `None`: too few pieces.
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
    ALPHA / (FIGURES_PER_LINK * links.max(1)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::turns::Measured;
    use crate::plan::Turns;
    use crate::record::{Done, TurnBegan};
    use crate::run::IntervalRecord;

    #[test]
    fn only_small_file_slices_are_split() {
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
    fn turn_count_must_fit_duration() {
        let of = |length_s, links, in_flight, handshakes| {
            turns(Duration::from_secs(length_s), links, in_flight, handshakes)
        };
        let slot = Duration::from_millis(110);
        assert_eq!(of(32, 16, 16 << 10, 16), Some((slot, 18)));
        assert_eq!(of(64, 16, 16 << 10, 16), Some((slot, 36)));
        assert_eq!(of(16, 16, 16 << 10, 16), None);
        assert_eq!(of(32, 16, 64 << 20, 4), None);
        let longer = Duration::from_micros(550_000);
        assert_eq!(of(60, 4, 0, 100), Some((longer, 27)));
        assert_eq!(of(1, 0, 0, 0), None);
    }

    #[test]
    fn rounds_are_spread_without_loss() {
        for own in 1..=18 {
            let taken: Vec<usize> = (0..18).filter(|r| takes_part(*r, own, 18)).collect();
            assert_eq!(taken.len(), own);
            let widest = taken.windows(2).map(|two| two[1] - two[0]).max();
            assert!(widest.is_none_or(|rounds| rounds <= 18_usize.div_ceil(own)));
        }
    }

    /// Of a closed loop with two workers, whose readings come in intervals of their own.
    #[test]
    fn turn_totals_are_differences_across_workers() {
        let reading = |turn, client_ns, ok, began_ns, ended_ns| TurnBegan {
            turn,
            client_ns,
            server_ns: Some(turn * 40_000),
            done: Some(Done {
                ok,
                bytes_received: ok * 1_000,
                began_ns,
                ended_ns,
            }),
        };
        let ms = 1_000_000;
        let first = [
            reading(0, 0, 0, 10 * ms, 10 * ms),
            reading(1, 20_000, 5, 210 * ms, 105 * ms),
            reading(2, 50_000, 15, 410 * ms, 308 * ms),
            // The third was slept through.
            reading(4, 90_000, 16, 820 * ms, 540 * ms),
        ];
        let second = [
            reading(0, 0, 0, 11 * ms, 11 * ms),
            reading(1, 10_000, 5, 209 * ms, 104 * ms),
            reading(2, 30_000, 25, 411 * ms, 311 * ms),
            reading(4, 40_000, 26, 819 * ms, 520 * ms),
        ];
        let turns = Turns {
            of: 2,
            index: 0,
            share: 1,
            calls: 1,
            seed: 1,
            read_cpu: true,
            slot: Some(Duration::from_millis(110)),
        };
        let mut all = vec![Measured::new(turns, 0, vec![true, false])];
        for readings in [first, second] {
            all[0].interval(&IntervalRecord {
                turns: readings.to_vec(),
                ..IntervalRecord::default()
            });
        }
        Measured::end(&mut all, &[&[7]]);
        let piece = |elapsed_s, ok, client_us, server_us, overran| Piece {
            elapsed_s,
            ok,
            bytes_received: ok * 1_000,
            client_cpu_us: Some(client_us),
            server_cpu_us: Some(server_us),
            overran,
        };
        assert_eq!(
            all[0].carried(1, Duration::from_millis(110)),
            [
                piece(0.102, 30, 50.0, 40.0, false),
                piece(0.13, 2, 50.0, 80.0, true),
            ]
        );
    }
}
