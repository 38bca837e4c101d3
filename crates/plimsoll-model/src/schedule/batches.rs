//! Assigns the arrivals of one schedule to several loads, in batches.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::plan::BatchSchedule;

/// Returns the batch numbers 0 to `of` - 1 in the order of one round, in which every batch occurs once. The shuffle
/// (Fisher and Yates) depends only on the seed and the round.
pub fn shuffle_batches(of: u32, round: u64, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(round);
    let mut order: Vec<u32> = (0..of).collect();
    for i in (1..order.len()).rev() {
        let at = (random.next_u64() % (i as u64 + 1)) as usize;
        order.swap(i, at);
    }
    order
}

/// A mapping between the numbers of one load's arrivals, from 0, and their numbers in the shared schedule.
#[derive(Clone, Debug)]
pub(super) struct BatchAssignment {
    batches: BatchSchedule,
    round: u64,
    /// The positions of the load's batches within `round`, ascending.
    batch_positions: Vec<u64>,
}

impl BatchAssignment {
    pub(super) fn new(turns: BatchSchedule) -> BatchAssignment {
        let mut deal = BatchAssignment {
            batches: BatchSchedule {
                of: turns.of.max(1),
                share: turns.share.max(1),
                calls: turns.calls.max(1),
                ..turns
            },
            round: 0,
            batch_positions: Vec::new(),
        };
        deal.shuffle_round();
        deal
    }

    fn shuffle_round(&mut self) {
        let BatchSchedule {
            of,
            index,
            share,
            seed,
            ..
        } = self.batches;
        let own = index..index.saturating_add(share);
        let order = shuffle_batches(of, self.round, seed);
        self.batch_positions.clear();
        let places = (0..).zip(order).filter(|(_, turn)| own.contains(turn));
        self.batch_positions
            .extend(places.map(|(place, _): (u64, u32)| place));
    }

    #[inline]
    fn set_round(&mut self, round: u64) {
        if round != self.round {
            self.round = round;
            self.shuffle_round();
        }
    }

    fn calls_per_batch(&self) -> u64 {
        u64::from(self.batches.calls)
    }

    /// Returns how many arrivals of a round belong to the load.
    fn own_arrivals_per_round(&self) -> u64 {
        self.calls_per_batch() * u64::from(self.batches.share)
    }

    fn arrivals_per_round(&self) -> u64 {
        self.calls_per_batch() * u64::from(self.batches.of)
    }

    /// Returns the number in the shared schedule of the load's arrival `own`.
    #[inline]
    pub(super) fn shared_arrival_number(&mut self, own: u64) -> u64 {
        let calls = self.calls_per_batch();
        let (round, within) = (
            own / self.own_arrivals_per_round(),
            own % self.own_arrivals_per_round(),
        );
        self.set_round(round);
        let place = self.batch_positions[(within / calls) as usize];
        round
            .saturating_mul(self.arrivals_per_round())
            .saturating_add(place * calls + within % calls)
    }

    /// Converts the number of an arrival in the shared schedule to its number within this load. Returns `None` if the
    /// arrival belongs to another load.
    pub(super) fn own_arrival_number(&mut self, shared: u64) -> Option<u64> {
        let calls = self.calls_per_batch();
        let (round, within) = (
            shared / self.arrivals_per_round(),
            shared % self.arrivals_per_round(),
        );
        self.set_round(round);
        let turn = self.batch_positions.binary_search(&(within / calls)).ok()?;
        Some(round * self.own_arrivals_per_round() + turn as u64 * calls + within % calls)
    }
}
