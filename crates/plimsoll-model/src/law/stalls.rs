//! A server that stalls at times: answers that are due during a stall leave at its end.

use serde::Deserialize;
use toml::Table;

use super::request_rng::RequestRng;
use super::{
    DelayLaw, FIRST_ARRIVAL_NS, LawContext, LawError, LawRequest, LawSettings, checked_nanos,
};
use crate::formats::units::Period;

/// Minimum mean time between two stalls, in nanoseconds. It limits the number of stalls, which are all kept in memory.
const MIN_STALL_GAP_NS: f64 = 1e6;

#[derive(Debug, Deserialize)]
pub(super) struct StallsSettings {
    of: Table,
    every: Period,
    length: Period,
}

impl LawSettings for StallsSettings {
    const NAME: &'static str = "stalls";
    const KEYS: &'static [&'static str] = &["of", "every", "length"];

    fn build(self, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        let every = checked_nanos("every", self.every)?;
        if every < MIN_STALL_GAP_NS {
            let problem = format!("every: {} is too short: at least 1ms", self.every);
            return Err(LawError::new(problem));
        }
        Ok(Box::new(StallsLaw {
            of: within.build_nested("of", self.of)?,
            every,
            length: checked_nanos("length", self.length)?,
            draws: RequestRng::for_server(within.seed),
            stalls: Vec::new(),
        }))
    }
}

#[derive(Debug)]
struct StallsLaw {
    of: Box<dyn DelayLaw>,
    /// Mean time from the end of a stall to the start of the next, nanoseconds.
    every: f64,
    length: f64,
    draws: RequestRng,
    /// Start and end of the stalls drawn so far, in order.
    stalls: Vec<(u64, u64)>,
}

impl StallsLaw {
    /// Draws stalls until one starts after `at`.
    fn draw_stalls_until(&mut self, at: u64) {
        while self.stalls.last().is_none_or(|(begins, _)| *begins <= at) {
            let end = self.stalls.last().map_or(FIRST_ARRIVAL_NS, |(_, end)| *end);
            // A gap of at least a nanosecond makes the loop terminate.
            let gap = (self.every * self.draws.exponential()).round().max(1.0);
            let begins = end.saturating_add(gap as u64);
            let ends = begins.saturating_add(self.length as u64);
            self.stalls.push((begins, ends));
            if begins == u64::MAX {
                return;
            }
        }
    }
}

impl DelayLaw for StallsLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        let due = self.of.answer_time(request, draws);
        self.draw_stalls_until(due);
        let before = self.stalls.partition_point(|(begins, _)| *begins <= due);
        match before.checked_sub(1).map(|last| self.stalls[last]) {
            Some((_, end)) => due.max(end),
            None => due,
        }
    }
}
