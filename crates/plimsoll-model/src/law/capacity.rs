//! A server with limited concurrency: further requests wait in order of arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Deserialize;
use toml::Table;

use super::draws::Draws;
use super::{Law, LawError, Request, Settings, Within};

/// Maximum concurrency.
const MAX_PLACES: u32 = 100_000;

#[derive(Debug, Deserialize)]
pub(super) struct Capacity {
    places: u32,
    service: Table,
}

impl Settings for Capacity {
    const NAME: &'static str = "capacity";
    const KEYS: &'static [&'static str] = &["places", "service"];

    fn law(self, within: &Within) -> Result<Box<dyn Law>, LawError> {
        if !(1..=MAX_PLACES).contains(&self.places) {
            let problem = format!(
                "places: {} is out of range: use 1 to {MAX_PLACES}",
                self.places
            );
            return Err(LawError::new(problem));
        }
        Ok(Box::new(Queue {
            places: self.places as usize,
            service: within.law("service", self.service)?,
            free: BinaryHeap::new(),
        }))
    }
}

#[derive(Debug)]
struct Queue {
    places: usize,
    service: Box<dyn Law>,
    /// When each busy slot becomes free, the earliest first.
    free: BinaryHeap<Reverse<u64>>,
}

impl Law for Queue {
    fn leaves(&mut self, request: Request, draws: &mut Draws) -> u64 {
        let mut begins = request.at;
        if self.free.len() == self.places
            && let Some(Reverse(free)) = self.free.pop()
        {
            begins = begins.max(free);
        }
        let leaves = self.service.leaves(Request { at: begins }, draws);
        self.free.push(Reverse(leaves));
        leaves
    }
}
