//! A server that slows down as a whole once too many requests are in progress (thrashing).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Deserialize;
use toml::Table;

use super::request_rng::RequestRng;
use super::{DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_number};

#[derive(Debug, Deserialize)]
pub(super) struct CollapseSettings {
    of: Table,
    limit: u32,
    factor: f64,
}

impl LawSettings for CollapseSettings {
    const NAME: &'static str = "collapse";
    const KEYS: &'static [&'static str] = &["of", "limit", "factor"];

    fn build(self, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        Ok(Box::new(CollapseLaw {
            of: within.build_nested("of", self.of)?,
            limit: self.limit as usize,
            factor: checked_number("factor", self.factor, 1.0, 1000.0)?,
            in_progress: BinaryHeap::new(),
        }))
    }
}

#[derive(Debug)]
struct CollapseLaw {
    of: Box<dyn DelayLaw>,
    /// Requests in progress above which further ones take `factor` times as long.
    limit: usize,
    factor: f64,
    /// When the requests in progress will be answered, the earliest first.
    in_progress: BinaryHeap<Reverse<u64>>,
}

impl DelayLaw for CollapseLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        while let Some(Reverse(leaves)) = self.in_progress.peek()
            && *leaves <= request.at
        {
            self.in_progress.pop();
        }
        let time = self
            .of
            .answer_time(request, draws)
            .saturating_sub(request.at);
        let is_over = self.in_progress.len() >= self.limit;
        let factor = if is_over { self.factor } else { 1.0 };
        let leaves = request.time_after(time as f64 * factor);
        self.in_progress.push(Reverse(leaves));
        leaves
    }
}
