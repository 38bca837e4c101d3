//! Defines the objects that the shards of a run write into the rendezvous: names and contents.
//!
//! ```text
//! RUN-ID/head.json                      manifest and plan of the run; written once by the coordinator
//! RUN-ID/arrivals/00003.json            arrival of shard 3; written once by that shard
//! RUN-ID/arrivals/00003.withdrawn.json  withdrawal of shard 3, with or without an arrival; written once by that shard
//! RUN-ID/orders.json                    orders to all shards; rewritten by the coordinator
//! RUN-ID/logs/00003/00000017.zst        18th part of the log of shard 3; written once by that shard
//! RUN-ID/stop-request.json              stop request; written by an observer
//! ```
//!
//! A series of loads, such as the trials of a search, has a folder for each load, and objects that announce the next
//! load:
//!
//! ```text
//! RUN-ID/steps/00002.json               the second load, or that there is none; written once by the coordinator
//! RUN-ID/00002/head.json                objects of its run, as above
//! ```
//!
//! Every object except the orders is written once, and fields of the orders are set but never reset, so repeated
//! requests and lost answers do no harm. A log consists of the messages that a process of a multi-process load writes
//! to its pipe ([`crate::load::multiprocess::wire`]), divided into compressed parts.

use std::collections::BTreeMap;

use plimsoll_model::runs::run::RunHeader;
use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Failure};
use crate::load::multiprocess::wire::ShardMessage;

/// Version of the object formats; incremented when older versions of Plimsoll can't read them. All shards must be the
/// same build, so the version matters mostly for merging an old run.
pub(super) const FORMAT_VERSION: u32 = 3;

/// The oldest format version whose runs `merge` and `watch` can read. Version 2 had another name for the stop request.
pub(super) const OLDEST_READABLE_VERSION: u32 = 2;

/// Maximum decompressed size of a log part, bytes.
const MAX_PART_BYTES: u64 = 256 << 20;

pub(super) const HEAD_OBJECT: &str = "head.json";
pub(super) const ORDERS_OBJECT: &str = "orders.json";
pub(super) const STOP_REQUEST_OBJECT: &str = "stop-request.json";
pub(super) const ARRIVALS_FOLDER: &str = "arrivals";
const WITHDRAWN_SUFFIX: &str = ".withdrawn.json";

pub(super) fn arrival_object_name(shard: u32) -> String {
    format!("{ARRIVALS_FOLDER}/{shard:05}.json")
}

/// Returns the shard number in the name of an arrival.
pub(super) fn shard_from_arrival_name(name: &str) -> Option<u32> {
    let (_, name) = name.rsplit_once('/')?;
    name.strip_suffix(".json")?.parse().ok()
}

/// Returns the name of the object that a shard writes if it can't take part in the run.
pub(super) fn withdrawal_object_name(shard: u32) -> String {
    format!("{ARRIVALS_FOLDER}/{shard:05}{WITHDRAWN_SUFFIX}")
}

/// Returns the shard number in the name of a withdrawal.
pub(super) fn shard_from_withdrawal_name(name: &str) -> Option<u32> {
    let (_, name) = name.rsplit_once('/')?;
    name.strip_suffix(WITHDRAWN_SUFFIX)?.parse().ok()
}

pub(super) fn log_part_object_name(shard: u32, number: u64) -> String {
    format!("logs/{shard:05}/{number:08}.zst")
}

/// Folder of the announcements of a series' loads.
pub(super) const STEPS_FOLDER: &str = "steps";

pub(super) fn announcement_object_name(number: u32) -> String {
    format!("{STEPS_FOLDER}/{}.json", load_folder_name(number))
}

/// Returns the folder of a load in a series.
pub(super) fn load_folder_name(number: u32) -> String {
    format!("{number:05}")
}

/// Returns the load's number from the name of its folder; `None` for other names.
pub(super) fn parse_load_folder_name(name: &str) -> Option<u32> {
    let name = name.rsplit('/').next()?;
    (name.len() == 5).then(|| name.parse().ok()).flatten()
}

/// Digests of a shard's plan, build and data, which must be equal in all shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunDigests {
    /// Digest of the plan with every default filled in.
    pub(super) plan: String,
    /// Digest of this program's executable.
    pub(super) build: String,
    /// Digest of each data file that the plan names, by path.
    pub(super) data: BTreeMap<String, String>,
}

impl RunDigests {
    /// Describes the first difference; `None` if all digests are equal.
    pub(super) fn describe_difference(&self, other: &RunDigests) -> Option<String> {
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

/// The announcement of a shard that has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) version: u32,
    pub(super) shard: u32,
    pub(super) of: u32,
    /// Random token of the process, which reveals a second process with the same shard number.
    pub(super) token: String,
    pub(super) digests: RunDigests,
}

/// The announcement of a shard that does not take part in the run, because it failed or was stopped before all shards
/// had arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Withdrawal {
    pub(super) reason: String,
}

/// Returns the reason in a withdrawal object.
pub(super) fn parse_withdrawal_reason(bytes: &[u8]) -> String {
    let read = from_json::<Withdrawal>("withdrawal", bytes);
    read.map_or_else(|problem| problem, |read| read.reason)
}

/// The coordinator's orders to all shards. Fields are only ever set, never reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Heartbeat counter, incremented by every write.
    pub(super) beat: u64,
    /// Whether all shards have arrived and must open their connections.
    pub(super) connect: bool,
    /// Start time of the load, ns since 1970 on the store's clock.
    pub(super) begin_unix_ns: Option<u64>,
    /// Stop level: 0 none, 1 graceful (calls in flight may finish), 2 immediate.
    pub(super) stop: u8,
    /// Reason why the run was aborted.
    pub(super) abort: Option<String>,
    /// The result; set once the run is over, and its directory is written and judged.
    pub(super) ended: Option<RunResult>,
}

impl Orders {
    /// Returns orders that announce the result of a run that ended before its load started.
    pub(super) fn with_result(ended: RunResult) -> Orders {
        Orders {
            beat: 1,
            ended: Some(ended),
            ..Orders::default()
        }
    }
}

/// The result of a run, which shard 0 announces to the other shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunResult {
    pub(crate) exit: u8,
    /// Why the coordinator failed; `None` if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl RunResult {
    pub(super) fn from_exit(exit: u8) -> RunResult {
        RunResult { exit, reason: None }
    }

    pub(super) fn from_failure(failure: &Failure) -> RunResult {
        RunResult {
            exit: failure.exit().code(),
            reason: Some(format!("shard 0, which leads the run: {failure}")),
        }
    }

    /// Returns the exit code that all shards end with.
    ///
    /// # Errors
    /// When the coordinator failed.
    pub(super) fn into_exit(self) -> Result<Exit, Failure> {
        let exit = Exit::from_code(self.exit);
        match self.reason {
            None => Ok(exit),
            Some(reason) => Err(Failure::new(exit, miette::miette!("{reason}"))),
        }
    }
}

/// The announcement of the next load of a series, or of its end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NextLoad<S> {
    Load(S),
    /// The series has ended.
    Ended(RunResult),
}

/// A stop request from `plimsoll watch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StopRequest {
    /// The stop level, as in [`Orders::stop`].
    pub(super) stop: u8,
}

/// The run's manifest: the data that a run directory needs in addition to the logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunManifest {
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

/// Parses the object `name`.
///
/// # Errors
/// When the bytes are not an object of this type.
pub(super) fn from_json<'a, T: Deserialize<'a>>(name: &str, bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("{name}: {e}"))
}

/// Compresses a log part.
pub(super) fn compress_log_part(lines: &[String]) -> Vec<u8> {
    // Compressing into memory can't fail. A higher level would cost time without reducing the size, because histograms
    // are already compressed.
    zstd::encode_all(lines.join("\n").as_bytes(), 1).unwrap_or_default()
}

/// Decompresses and parses a log part.
///
/// # Errors
/// When the bytes are not a log part.
fn decompress_log_part(bytes: &[u8]) -> Result<Vec<ShardMessage>, String> {
    use std::io::Read as _;
    let mut text = String::new();
    zstd::Decoder::new(bytes)
        .and_then(|d| d.take(MAX_PART_BYTES + 1).read_to_string(&mut text))
        .map_err(|e| format!("part of a log: {e}"))?;
    if text.len() as u64 > MAX_PART_BYTES {
        let mib = MAX_PART_BYTES >> 20;
        return Err(format!("part of a log: more than {mib} MiB, decompressed"));
    }
    text.lines().map(ShardMessage::from_line).collect()
}

/// Returns the messages of a log part; for an invalid part, a message that the shard has failed.
pub(super) fn read_log_part(bytes: &[u8]) -> Vec<ShardMessage> {
    decompress_log_part(bytes).unwrap_or_else(|problem| vec![ShardMessage::Failed(problem)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::multiprocess::wire::ClockOffset;

    #[test]
    fn log_round_trips_and_rejects_truncation() {
        let lines = [
            ShardMessage::Clock(ClockOffset::default()),
            ShardMessage::Alive,
            ShardMessage::Failed("no\nroom".into()),
        ];
        let texts: Vec<String> = lines.iter().map(ShardMessage::to_line).collect();
        let sealed = compress_log_part(&texts);
        assert_eq!(decompress_log_part(&sealed).unwrap(), lines);
        assert_eq!(decompress_log_part(&compress_log_part(&[])).unwrap(), []);
        for end in 1..sealed.len() {
            assert!(decompress_log_part(&sealed[..end]).is_err(), "cut at {end}");
        }
        assert!(decompress_log_part(b"hello").is_err());
        assert_eq!(shard_from_arrival_name(&arrival_object_name(12)), Some(12));
        assert_eq!(shard_from_arrival_name("arrivals/x"), None);
        assert_eq!(
            shard_from_withdrawal_name(&withdrawal_object_name(12)),
            Some(12)
        );
        assert_eq!(shard_from_arrival_name(&withdrawal_object_name(12)), None);
        assert_eq!(shard_from_withdrawal_name(&arrival_object_name(12)), None);
    }

    #[test]
    fn digest_difference_is_named() {
        let one = RunDigests {
            plan: "a".into(),
            build: "b".into(),
            data: [("rows.csv".to_owned(), "c".to_owned())].into(),
        };
        assert_eq!(one.describe_difference(&one), None);
        let mut other = one.clone();
        other.data.insert("rows.csv".into(), "d".into());
        let difference = one.describe_difference(&other);
        assert_eq!(difference.as_deref(), Some("another data file rows.csv"));
        other.data.clear();
        assert!(one.describe_difference(&other).is_some());
        other.plan = "x".into();
        assert_eq!(
            one.describe_difference(&other).as_deref(),
            Some("another plan")
        );
        other.build = "x".into();
        let difference = one.describe_difference(&other);
        assert_eq!(difference.as_deref(), Some("another build of plimsoll"));
    }
}
