//! What shards of one run write into the rendezvous: names and contents.
//!
//! ```text
//! RUN-ID/head.json                 the run's head and plan: by the leader, once
//! RUN-ID/arrivals/00003.json       shard 3 is there: by itself, once
//! RUN-ID/arrivals/00003.withdrawn.json  it can't take part, whether it was there or not: by itself, once
//! RUN-ID/orders.json               what all are to do: by the leader, again and again
//! RUN-ID/logs/00003/00000017.zst   what shard 3 sent, the 18th part: by itself, once
//! RUN-ID/stop-request.json         the run is to end: by whoever watches
//! ```
//!
//! Loads that follow one another, such as trials of a search, have a folder each, and beside them what comes next:
//!
//! ```text
//! RUN-ID/steps/00002.json          the second load, or that there is none: by the leader, once
//! RUN-ID/00002/head.json           …and so on: its run
//! ```
//!
//! Every object but the orders is written once, and what the orders say is only added to; so a
//! request that is made twice, or whose answer is lost, changes nothing. A log is the messages
//! that a process of a spread load writes on its pipe ([`crate::spread::wire`]), cut into parts
//! and compressed.

use std::collections::BTreeMap;

use plimsoll_model::run::RunHeader;
use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Failure};
use crate::spread::wire::Message;

/// Changes when shards of one version can't understand those of another. The build that all must
/// have alike makes that rare; a merge of an old run needs it.
pub(super) const FORMAT_VERSION: u32 = 3;

/// The oldest version whose runs `merge` and `watch` read. Version 2 had another name for the stop request.
pub(super) const OLDEST_READABLE_VERSION: u32 = 2;

/// As much as a part of a log may be, decompressed.
const MAX_PART: u64 = 256 << 20;

pub(super) const HEAD_OBJECT: &str = "head.json";
pub(super) const ORDERS_OBJECT: &str = "orders.json";
pub(super) const STOP_REQUEST_OBJECT: &str = "stop-request.json";
pub(super) const ARRIVALS_FOLDER: &str = "arrivals";
const WITHDRAWN_SUFFIX: &str = ".withdrawn.json";

pub(super) fn arrival(shard: u32) -> String {
    format!("{ARRIVALS_FOLDER}/{shard:05}.json")
}

/// The number in such a name.
pub(super) fn arrived(name: &str) -> Option<u32> {
    let (_, name) = name.rsplit_once('/')?;
    name.strip_suffix(".json")?.parse().ok()
}

/// What a shard writes that can't take part.
pub(super) fn withdrawal(shard: u32) -> String {
    format!("{ARRIVALS_FOLDER}/{shard:05}{WITHDRAWN_SUFFIX}")
}

/// The number in such a name.
pub(super) fn withdrawn(name: &str) -> Option<u32> {
    let (_, name) = name.rsplit_once('/')?;
    name.strip_suffix(WITHDRAWN_SUFFIX)?.parse().ok()
}

pub(super) fn part(shard: u32, number: u64) -> String {
    format!("logs/{shard:05}/{number:08}.zst")
}

/// The folder in which loads that follow one another are announced.
pub(super) const STEPS_FOLDER: &str = "steps";

pub(super) fn step(number: u32) -> String {
    format!("{STEPS_FOLDER}/{}.json", of_series(number))
}

/// The folder of one of them.
pub(super) fn of_series(number: u32) -> String {
    format!("{number:05}")
}

/// The number of such a folder.
pub(super) fn numbered(name: &str) -> Option<u32> {
    let name = name.rsplit('/').next()?;
    (name.len() == 5).then(|| name.parse().ok()).flatten()
}

/// What a shard is going to carry out, and with what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digests {
    /// The digest of the plan, every default filled in.
    pub(super) plan: String,
    /// The digest of this program.
    pub(super) build: String,
    /// The digest of each file that the plan names for its calls, by path.
    pub(super) data: BTreeMap<String, String>,
}

impl Digests {
    /// What is not the same, for people.
    pub(super) fn difference(&self, other: &Digests) -> Option<String> {
        if self.build != other.build {
            return Some("another build of plimsoll".to_owned());
        }
        if self.plan != other.plan {
            return Some("another plan".to_owned());
        }
        let names = self.data.keys().chain(other.data.keys());
        let different = names
            .into_iter()
            .find(|name| self.data.get(*name) != other.data.get(*name))?;
        Some(format!("another data file {different}"))
    }
}

/// A shard is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) version: u32,
    pub(super) shard: u32,
    pub(super) of: u32,
    /// A token of this process, by which a second one is noticed.
    pub(super) token: String,
    pub(super) digests: Digests,
}

/// A shard does not take part: it failed before all had come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Withdrawal {
    pub(super) reason: String,
}

/// Why a shard withdrew that wrote this.
pub(super) fn reason(bytes: &[u8]) -> String {
    let read = from_json::<Withdrawal>("withdrawal", bytes);
    read.map_or_else(|problem| problem, |read| read.reason)
}

/// What the leader wants of all. Nothing that it says is ever taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Another one each time: the leader is there.
    pub(super) beat: u64,
    /// All shards have come: connections are to be made.
    pub(super) connect: bool,
    /// When the load begins: nanoseconds since 1970, on the store's clock.
    pub(super) begin_unix_ns: Option<u64>,
    /// 1: the run is to end, calls in flight may; 2: at once.
    pub(super) stop: u8,
    /// The run is given up.
    pub(super) abort: Option<String>,
    /// The run is over, written and judged.
    pub(super) ended: Option<Ended>,
}

impl Orders {
    /// There is nothing to do any more.
    pub(super) fn ended(ended: Ended) -> Orders {
        Orders {
            beat: 1,
            ended: Some(ended),
            ..Orders::default()
        }
    }
}

/// What came of a run, for shards that do not write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) exit: u8,
    /// Why the leader failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Ended {
    pub(super) fn with(exit: u8) -> Ended {
        Ended { exit, reason: None }
    }

    pub(super) fn failed(failure: &Failure) -> Ended {
        Ended {
            exit: failure.exit().code(),
            reason: Some(format!("shard 0, which leads the run: {failure}")),
        }
    }

    /// What a shard ends with whose leader has ended.
    ///
    /// # Errors
    /// Where that failed.
    pub(super) fn result(self) -> Result<Exit, Failure> {
        let exit = Exit::from_code(self.exit);
        match self.reason {
            None => Ok(exit),
            Some(reason) => Err(Failure::new(exit, miette::miette!("{reason}"))),
        }
    }
}

/// What the shards of a series do next.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Next<S> {
    Load(S),
    /// There is no more.
    Ended(Ended),
}

/// Whoever watches wants the run to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wish {
    /// The same as [`Orders::stop`].
    pub(super) stop: u8,
}

/// What a run directory begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) version: u32,
    pub(super) of: u32,
    pub(super) keep_requests: bool,
    pub(super) header: RunHeader,
    /// The plan as TOML, without secrets.
    pub(super) plan_toml: String,
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("keys are strings and numbers finite")
}

/// # Errors
/// Where the object is something else.
pub(super) fn from_json<'a, T: Deserialize<'a>>(name: &str, bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("{name}: {e}"))
}

/// A part of a log.
pub(super) fn seal(lines: &[String]) -> Vec<u8> {
    // In memory nothing fails; histograms are compressed already, so more would cost and gain
    // nothing.
    zstd::encode_all(lines.join("\n").as_bytes(), 1).unwrap_or_default()
}

/// The messages of such a part.
///
/// # Errors
/// Where it is none.
fn open(bytes: &[u8]) -> Result<Vec<Message>, String> {
    use std::io::Read as _;
    let mut text = String::new();
    zstd::Decoder::new(bytes)
        .and_then(|d| d.take(MAX_PART + 1).read_to_string(&mut text))
        .map_err(|e| format!("part of a log: {e}"))?;
    if text.len() as u64 > MAX_PART {
        let mib = MAX_PART >> 20;
        return Err(format!("part of a log: more than {mib} MiB, decompressed"));
    }
    text.lines().map(Message::from_line).collect()
}

/// The same; what is no part of a log is the message of a shard that failed.
pub(super) fn messages(bytes: &[u8]) -> Vec<Message> {
    open(bytes).unwrap_or_else(|problem| vec![Message::Failed(problem)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::wire::Offset;

    #[test]
    fn log_round_trips_and_rejects_truncation() {
        let lines = [
            Message::Clock(Offset::default()),
            Message::Alive,
            Message::Failed("no\nroom".into()),
        ];
        let texts: Vec<String> = lines.iter().map(Message::to_line).collect();
        let sealed = seal(&texts);
        assert_eq!(open(&sealed).unwrap(), lines);
        assert_eq!(open(&seal(&[])).unwrap(), []);
        for end in 1..sealed.len() {
            assert!(open(&sealed[..end]).is_err(), "cut at {end}");
        }
        assert!(open(b"hello").is_err());
        assert_eq!(arrived(&arrival(12)), Some(12));
        assert_eq!(arrived("arrivals/x"), None);
        assert_eq!(withdrawn(&withdrawal(12)), Some(12));
        assert_eq!(arrived(&withdrawal(12)), None);
        assert_eq!(withdrawn(&arrival(12)), None);
    }

    #[test]
    fn digest_difference_is_named() {
        let one = Digests {
            plan: "a".into(),
            build: "b".into(),
            data: [("rows.csv".to_owned(), "c".to_owned())].into(),
        };
        assert_eq!(one.difference(&one), None);
        let mut other = one.clone();
        other.data.insert("rows.csv".into(), "d".into());
        let difference = one.difference(&other);
        assert_eq!(difference.as_deref(), Some("another data file rows.csv"));
        other.data.clear();
        assert!(one.difference(&other).is_some());
        other.plan = "x".into();
        assert_eq!(one.difference(&other).as_deref(), Some("another plan"));
        other.build = "x".into();
        let difference = one.difference(&other);
        assert_eq!(difference.as_deref(), Some("another build of plimsoll"));
    }
}
