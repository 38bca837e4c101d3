//! Delay laws: when a server with known behaviour answers each request.
//!
//! A law is a pure function of a seed and of the requests' arrival times, so the true delays of a load can be computed
//! again from both, for the actual arrivals and for any others. It reads no clock. The reference server takes its
//! delays from a law, and a measurement is checked by computing them again.
//!
//! A law is a file in this folder and an entry of [`LAWS`]. In a server's configuration, a law is a table with its name
//! in the key `law`. Laws that modify another law contain it as a nested table.

mod bimodal;
mod capacity;
mod collapse;
mod constant;
mod drift;
mod exponential;
mod lognormal;
mod mixture;
mod pareto;
mod request_rng;
mod stalls;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::Duration;

use serde::de::DeserializeOwned;
use toml::Table;

use crate::formats::suggest::suggest;
use crate::formats::units::Period;

use request_rng::RequestRng;

/// Maximum for the times in a law's settings and for delays: the longest time that histograms resolve.
pub const MAX_DELAY: Duration = Duration::from_secs(3600);
/// Maximum size of a law's text, in bytes.
pub const MAX_LAW_BYTES: usize = 64 * 1024;
/// Time of the first request's arrival on the laws' clock, in nanoseconds. It is not 0, because a request that is read
/// later may have arrived earlier.
const FIRST_ARRIVAL_NS: u64 = 1 << 42;
/// Maximum nesting of laws.
const MAX_NESTING_DEPTH: u32 = 8;

/// All laws, in the order in which messages list them.
static LAWS: [LawEntry; 10] = [
    LawEntry::new::<constant::ConstantSettings>(),
    LawEntry::new::<exponential::ExponentialSettings>(),
    LawEntry::new::<bimodal::BimodalSettings>(),
    LawEntry::new::<lognormal::LognormalSettings>(),
    LawEntry::new::<pareto::ParetoSettings>(),
    LawEntry::new::<stalls::StallsSettings>(),
    LawEntry::new::<capacity::CapacitySettings>(),
    LawEntry::new::<drift::DriftSettings>(),
    LawEntry::new::<collapse::CollapseSettings>(),
    LawEntry::new::<mixture::MixtureSettings>(),
];

/// Why a law's text is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LawError(String);

impl LawError {
    fn new(problem: impl Into<String>) -> LawError {
        LawError(problem.into())
    }

    /// Prefixes the error with `key`, the key of the outer table.
    fn with_outer_key(self, key: &str) -> LawError {
        LawError(format!("{key}: {}", self.0))
    }
}

/// A request as seen by a law.
#[derive(Clone, Copy, Debug)]
struct LawRequest {
    /// When it arrived, or when its service begins, in nanoseconds on the laws' clock: the first one arrived at
    /// [`FIRST_ARRIVAL_NS`].
    at: u64,
}

impl LawRequest {
    /// Returns the time `ns` later; no answer takes longer than [`MAX_DELAY`].
    fn time_after(self, ns: f64) -> u64 {
        let longest = MAX_DELAY.as_nanos() as f64;
        // The cast turns NaN into zero.
        self.at.saturating_add(ns.min(longest).round() as u64)
    }
}

/// A law, which determines when answers leave.
trait DelayLaw: Debug + Send {
    /// Returns when the answer to `request` leaves, on the same clock as [`LawRequest::at`]. Requests come in the order
    /// in which they were read.
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64;
}

/// The settings of a law.
trait LawSettings: DeserializeOwned {
    /// The law's name.
    const NAME: &'static str;
    /// Names of the law's keys, for messages.
    const KEYS: &'static [&'static str];

    /// Validates the settings and creates the law.
    ///
    /// # Errors
    /// Returns the key whose value is invalid, and what a valid value would be.
    fn build(self, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError>;
}

/// The context in which a law is created.
#[derive(Clone, Copy, Debug)]
struct LawContext {
    seed: u64,
    depth: u32,
}

impl LawContext {
    /// Creates the law that is nested in another one, under its key `key`.
    fn build_nested(&self, key: &str, table: Table) -> Result<Box<dyn DelayLaw>, LawError> {
        let within = LawContext {
            depth: self.depth + 1,
            ..*self
        };
        if within.depth > MAX_NESTING_DEPTH {
            let problem = format!("laws nested more than {MAX_NESTING_DEPTH} deep");
            return Err(LawError::new(problem));
        }
        parse_table(table, &within).map_err(|e| e.with_outer_key(key))
    }
}

/// A function that parses a law's settings from its table.
type LawParser = fn(Table, &LawContext) -> Result<Box<dyn DelayLaw>, LawError>;

/// A law with its type erased.
struct LawEntry {
    name: &'static str,
    parse: LawParser,
}

impl LawEntry {
    const fn new<S: LawSettings>() -> LawEntry {
        LawEntry {
            name: S::NAME,
            parse: |table, within| {
                if let Some(key) = table.keys().find(|key| !S::KEYS.contains(&&***key)) {
                    let keys = S::KEYS.join("`, `");
                    return Err(LawError::new(format!(
                        "{} has no key `{key}`: use `{keys}`",
                        S::NAME
                    )));
                }
                let settings: S = table.try_into().map_err(|e: toml::de::Error| {
                    LawError::new(format!("{}: {}", S::NAME, e.to_string().trim_end()))
                })?;
                settings.build(within)
            },
        }
    }
}

fn parse_table(mut table: Table, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
    let names = || LAWS.iter().map(|law| law.name).collect::<Vec<_>>();
    let name = match table.remove("law") {
        Some(toml::Value::String(name)) => name,
        Some(_) => return Err(LawError::new("law: write a name in quotes")),
        None => {
            let names = names().join("`, `");
            return Err(LawError::new(format!(
                "missing key `law`: write law = and one of `{names}`"
            )));
        }
    };
    match LAWS.iter().find(|law| law.name == name) {
        Some(entry) => (entry.parse)(table, within),
        None => {
            let names = names();
            let hint = suggest(&name, &names).map(|near| format!("did you mean `{near}`? "));
            let hint = hint.unwrap_or_default();
            Err(LawError::new(format!(
                "law: unknown law `{name}`: {hint}the laws are `{}`",
                names.join("`, `")
            )))
        }
    }
}

/// The delays of one server, from its first request on.
#[derive(Debug)]
pub struct ServerDelays {
    law: Box<dyn DelayLaw>,
    seed: u64,
    /// The first request's arrival, which is the start of the laws' clock.
    first: Option<u64>,
    /// The number of requests so far.
    count: u64,
}

impl ServerDelays {
    /// Parses the text (TOML) of a law whose random numbers come from `seed`.
    ///
    /// # Errors
    /// Returns the invalid key, and what is wrong with its value.
    pub fn new(text: &str, seed: u64) -> Result<ServerDelays, LawError> {
        if text.len() > MAX_LAW_BYTES {
            return Err(LawError::new(format!(
                "a law of {} bytes is too long: at most {MAX_LAW_BYTES} bytes",
                text.len()
            )));
        }
        let table: Table = text
            .parse()
            .map_err(|e: toml::de::Error| LawError::new(e.to_string().trim_end()))?;
        let law = parse_table(table, &LawContext { seed, depth: 0 })?;
        Ok(ServerDelays {
            law,
            seed,
            first: None,
            count: 0,
        })
    }

    /// Sets the time from which the law counts, in nanoseconds on any clock; without this call, it is the first
    /// request's arrival. If delays are computed again for other arrivals, the same start gives stalls at the same
    /// times.
    #[must_use]
    pub fn with_start(self, first: u64) -> ServerDelays {
        ServerDelays {
            first: Some(first),
            ..self
        }
    }

    /// Returns when the answer to the next request, which arrived at `arrived`, leaves; both in nanoseconds on the same
    /// clock. A request that arrived before the first one counts as if it had arrived together with it.
    pub fn next(&mut self, arrived: u64) -> u64 {
        let first = *self.first.get_or_insert(arrived);
        let mut draws = RequestRng::for_request(self.seed, self.count);
        self.count += 1;
        let at = FIRST_ARRIVAL_NS
            .saturating_add(arrived)
            .saturating_sub(first);
        let leaves = self.law.answer_time(LawRequest { at }, &mut draws).max(at);
        let longest = u64::try_from(MAX_DELAY.as_nanos()).unwrap_or(u64::MAX);
        arrived.saturating_add((leaves - at).min(longest))
    }

    /// Returns the number of requests so far.
    pub fn request_count(&self) -> u64 {
        self.count
    }
}

/// Validates the time at key `key` and converts it to nanoseconds.
fn checked_nanos(key: &str, period: Period) -> Result<f64, LawError> {
    if period.0 > MAX_DELAY {
        return Err(LawError::new(format!(
            "{key}: {period} is too long: at most {}",
            Period(MAX_DELAY)
        )));
    }
    Ok(period.0.as_nanos() as f64)
}

/// Validates the number at key `key`.
fn checked_number(key: &str, value: f64, from: f64, to: f64) -> Result<f64, LawError> {
    if !(from..=to).contains(&value) {
        return Err(LawError::new(format!(
            "{key}: {value} is not between {from} and {to}"
        )));
    }
    Ok(value)
}
