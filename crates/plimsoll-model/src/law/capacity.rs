//! A server with limited concurrency: further requests wait in order of arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Deserialize;
use toml::Table;

use super::request_rng::RequestRng;
use super::{DelayLaw, LawContext, LawError, LawRequest, LawSettings};

/// Maximum concurrency.
const MAX_CONCURRENCY: u32 = 100_000;

#[derive(Debug, Deserialize)]
pub(super) struct CapacitySettings {
    places: u32,
    service: Table,
}

impl LawSettings for CapacitySettings {
    const NAME: &'static str = "capacity";
    const KEYS: &'static [&'static str] = &["places", "service"];

    fn build(self, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        if !(1..=MAX_CONCURRENCY).contains(&self.places) {
            let problem = format!(
                "places: {} is out of range: use 1 to {MAX_CONCURRENCY}",
                self.places
            );
            return Err(LawError::new(problem));
        }
        Ok(Box::new(CapacityLaw {
            places: self.places as usize,
            service: within.build_nested("service", self.service)?,
            free: BinaryHeap::new(),
        }))
    }
}

#[derive(Debug)]
struct CapacityLaw {
    places: usize,
    service: Box<dyn DelayLaw>,
    /// When each busy slot becomes free, the earliest first.
    free: BinaryHeap<Reverse<u64>>,
}

impl DelayLaw for CapacityLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        let mut begins = request.at;
        if self.free.len() == self.places
            && let Some(Reverse(free)) = self.free.pop()
        {
            begins = begins.max(free);
        }
        let leaves = self.service.answer_time(LawRequest { at: begins }, draws);
        self.free.push(Reverse(leaves));
        leaves
    }
}
