//! One interval of a run, and its line in `intervals.jsonl`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::metrics::measure::{Count, TimeMeasure};
use crate::records::record::{
    BatchStart, FailureDetail, STEP_TIMES_BY_KEY, StageRecord, StepRecord, TIMES_BY_KEY,
    TimeHistogram,
};

use super::encoded_times::{TimesReader, encode};
use super::machine::MachineUse;
use super::memory::MemoryReading;
use super::users::UserLevels;

/// The CPU time that a process used in an interval, and its resources at the interval's end; in a run's first interval,
/// the larger of the values at its start and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUsage {
    /// User CPU time without busy waiting.
    pub cpu_user_us: u64,
    /// System CPU time; `None`: the run was measured by another tool, which reports user time only.
    pub cpu_system_us: Option<u64>,
    /// Resident memory. Here and in `descriptors` and `threads`, 0 means not known.
    pub rss_bytes: u64,
    /// Resident memory before the first connection; only in a run's first interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_bytes_before: Option<u64>,
    /// Open files and sockets.
    pub descriptors: u64,
    /// Number of threads, over all watched processes together.
    pub threads: u64,
}

impl ResourceUsage {
    /// Returns the resources with `cpu_us` of CPU time, divided into user and system time in the same ratio.
    #[must_use]
    pub fn with_cpu_time(self, cpu_us: u64) -> ResourceUsage {
        let system_us = self.cpu_system_us.map(|system| {
            let all = (self.cpu_user_us + system).max(1);
            (cpu_us as f64 * system as f64 / all as f64).round() as u64
        });
        ResourceUsage {
            cpu_user_us: cpu_us - system_us.unwrap_or(0).min(cpu_us),
            cpu_system_us: system_us,
            ..self
        }
    }

    /// Returns user and system CPU time together, µs.
    pub fn cpu_us(&self) -> Option<u64> {
        Some(self.cpu_user_us + self.cpu_system_us?)
    }
}

/// One interval of a run, all workers merged. As JSON, it is a line of `intervals.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// The interval's number, from 0.
    pub index: u64,
    /// Time from the start of the run (the first stage's first arrival).
    #[serde(rename = "start_us", with = "whole_us")]
    pub start_offset: Duration,
    /// The actual length.
    #[serde(rename = "length_us", with = "whole_us")]
    pub length: Duration,
    /// Calls that had been sent and had not ended at the end of the interval.
    pub in_flight: u64,
    /// Calls that were due and had not been sent at the end of the interval.
    pub backlog: u64,
    /// Connections open at the end of the interval.
    pub connections_open: u64,
    /// Users who make several calls each; `None`: the load has single calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<UserLevels>,
    /// The share of a core that the busiest worker used, without busy waiting (0–1).
    #[serde(serialize_with = "serialize_share")]
    pub busiest_worker_ratio: f64,
    /// Resources of the client; `None`: not known.
    pub client: Option<ResourceUsage>,
    /// Resources of the server process, where it is watched.
    pub server: Option<ResourceUsage>,
    /// How the machine's time was used; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineUse>,
    /// Readings of memory up to the interval's end, where the protocol requests them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryReading>,
    /// Records of the stages in which something happened, with their numbers.
    #[serde(with = "stages")]
    pub stages: Vec<(u8, StageRecord)>,
    /// Texts of failures in this interval.
    pub details: Vec<FailureDetail>,
    /// The batches that began in this interval, where CPU clocks are read for them.
    #[serde(default, alias = "turns", skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<BatchStart>,
}

/// Serialises a duration as whole microseconds.
mod whole_us {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}

/// Serialises a share with four decimals. A share that is not finite becomes 0, since JSON has no infinity.
fn serialize_share<S: Serializer>(share: &f64, to: S) -> Result<S::Ok, S::Error> {
    let share = Some(share).filter(|share| share.is_finite());
    to.serialize_f64(share.map_or(0.0, |share| (share * 1e4).round() / 1e4))
}

/// Serialises the stages, each as an object with its number.
mod stages {
    use super::{Deserialize, Deserializer, Serializer, StageEntry, StageRecord, TimesReader, de};

    pub(super) fn serialize<S: Serializer>(
        stages: &[(u8, StageRecord)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(
            stages
                .iter()
                .map(|(stage, record)| StageEntry::from_record(*stage, record)),
        )
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(u8, StageRecord)>, D::Error> {
        let lines: Vec<StageEntry<'de>> = Vec::deserialize(from)?;
        // Reject repeated numbers, because lookups would find only one of the entries.
        if let Some(pair) = lines.windows(2).find(|pair| pair[0].stage >= pair[1].stage) {
            return Err(de::Error::custom(format_args!(
                "stage {} comes after stage {}",
                pair[1].stage, pair[0].stage
            )));
        }
        let mut times = TimesReader::new();
        let stages = lines.into_iter().map(|line| line.into_record(&mut times));
        stages.collect::<Result<_, _>>().map_err(de::Error::custom)
    }
}

/// Text of a line, borrowed from it where possible: histograms are nine tenths of a line.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
struct LineText<'a>(#[serde(borrow)] Cow<'a, str>);

/// Encoded histograms by their keys.
type EncodedHistograms<'a> = BTreeMap<LineText<'a>, LineText<'a>>;

/// Returns the keys of histograms, each with the histogram's text.
fn key_text_pairs<'e>(
    histograms: &'e EncodedHistograms<'_>,
) -> impl Iterator<Item = (&'e str, &'e str)> {
    histograms
        .iter()
        .map(|(key, text)| (key.0.as_ref(), text.0.as_ref()))
}

#[derive(Serialize, Deserialize)]
struct StageEntry<'a> {
    stage: u8,
    #[serde(flatten)]
    record: Cow<'a, StageRecord>,
    /// Counters that only some protocols have; zeros are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    counts: BTreeMap<String, u64>,
    /// The steps of journeys; left out where there are none.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepEntry<'a>>,
    /// Histograms of nanoseconds: HdrHistogram V2, compressed, in base64. Empty ones are left out.
    #[serde(borrow)]
    histograms: EncodedHistograms<'a>,
}

impl<'a> StageEntry<'a> {
    fn from_record(stage: u8, record: &'a StageRecord) -> StageEntry<'a> {
        let mut serializer = V2DeflateSerializer::new();
        let known = histograms(record);
        StageEntry {
            stage,
            record: Cow::Borrowed(record),
            counts: nonzero_protocol_counts(record),
            steps: record
                .steps
                .iter()
                .map(|step| StepEntry::from_record(step, &mut serializer))
                .collect(),
            histograms: known
                .filter_map(|(key, times)| {
                    let text = encode(times.histogram()?, &mut serializer);
                    Some((LineText(key.into()), LineText(text.into())))
                })
                .collect(),
        }
    }

    /// Converts the line to a stage's record.
    ///
    /// # Errors
    /// When the name of a counter or histogram is unknown, or a histogram can't be decoded.
    fn into_record(self, times: &mut TimesReader) -> Result<(u8, StageRecord), String> {
        let mut record = self.record.into_owned();
        for (key, n) in &self.counts {
            let count = Count::from_key(key)
                .ok_or_else(|| format!("{key:?} is not the name of a count"))?;
            record.measures.add(count, *n);
        }
        let texts = key_text_pairs(&self.histograms);
        times.decode_all(texts, "a stage", &mut record, histogram_mut)?;
        let steps = self.steps.into_iter().map(|line| line.into_record(times));
        record.steps = steps.collect::<Result<_, _>>()?;
        Ok((self.stage, record))
    }
}

#[derive(Serialize, Deserialize)]
struct StepEntry<'a> {
    #[serde(flatten)]
    record: Cow<'a, StepRecord>,
    /// The step's histograms, in the same form as those of a stage.
    #[serde(borrow)]
    histograms: EncodedHistograms<'a>,
}

impl<'a> StepEntry<'a> {
    fn from_record(step: &'a StepRecord, serializer: &mut V2DeflateSerializer) -> StepEntry<'a> {
        let times = STEP_TIMES_BY_KEY.into_iter();
        let encoded = times
            .filter_map(|(key, of, _)| {
                let text = encode(of(step).histogram()?, serializer);
                Some((LineText(key.into()), LineText(text.into())))
            })
            .collect();
        StepEntry {
            record: Cow::Borrowed(step),
            histograms: encoded,
        }
    }

    /// Converts the line to a step's record.
    ///
    /// # Errors
    /// When the name of a histogram is unknown, or a histogram can't be decoded.
    fn into_record(self, times: &mut TimesReader) -> Result<StepRecord, String> {
        let mut record = self.record.into_owned();
        let texts = key_text_pairs(&self.histograms);
        times.decode_all(texts, "a step", &mut record, step_histogram_mut)?;
        Ok(record)
    }
}

/// Returns the histograms of a stage by their keys in the line, which end with the unit: nanoseconds.
pub fn histograms(record: &StageRecord) -> impl Iterator<Item = (String, &TimeHistogram)> {
    let of_calls = TIMES_BY_KEY
        .into_iter()
        .map(|(key, of, _)| (key.to_owned(), of(record)));
    let measured = |m: TimeMeasure| (format!("{}_ns", m.key()), record.measures.times(m));
    of_calls.chain(TimeMeasure::all().map(measured))
}

fn nonzero_protocol_counts(record: &StageRecord) -> BTreeMap<String, u64> {
    let all = Count::all().map(|count| (count.key().to_owned(), record.measures.counter(count)));
    all.filter(|(_, n)| *n > 0).collect()
}

fn histogram_mut<'a>(record: &'a mut StageRecord, key: &str) -> Option<&'a mut TimeHistogram> {
    if let Some((.., of_mut)) = TIMES_BY_KEY.into_iter().find(|(known, ..)| *known == key) {
        return Some(of_mut(record));
    }
    let measure = TimeMeasure::from_key(key.strip_suffix("_ns")?)?;
    Some(record.measures.times_mut(measure))
}

fn step_histogram_mut<'a>(record: &'a mut StepRecord, key: &str) -> Option<&'a mut TimeHistogram> {
    let mut known = STEP_TIMES_BY_KEY.into_iter();
    let (.., of_mut) = known.find(|(known, ..)| *known == key)?;
    Some(of_mut(record))
}

impl IntervalRecord {
    /// Formats the record as a line of `intervals.jsonl`, without line feed.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("the line's keys are strings and its numbers finite")
    }

    /// Parses a line of `intervals.jsonl`. The error is human-readable.
    pub fn from_line(text: &str) -> Result<IntervalRecord, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// Returns the time from the start of the run to the end of the interval.
    pub fn end_offset(&self) -> Duration {
        self.start_offset + self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::record::{BatchStart, RecordedInterval};
    use crate::{CallSample, ConnectPhases, Outcome, Recorder, Time};

    pub(crate) fn interval() -> IntervalRecord {
        let mut recorder = Recorder::new(2);
        for i in 0..100 {
            recorder.stage_mut(1).due += 1;
            recorder.stage_mut(1).pacing.record(50 + i);
            recorder.record_call(&CallSample {
                number: i,
                arrival: Time(0),
                sent: Time(1_000 * i),
                first_byte: Time(4_000_000),
                done: Time(5_000_000 + 10_000 * i),
                stage: 1,
                outcome: if i == 7 { Outcome::Reset } else { Outcome::Ok },
                bytes_sent: 10,
                bytes_received: 11,
            });
        }
        recorder.stage_mut(1).expired_unsent += 1;
        let names = ["log in".to_owned(), "order".to_owned()];
        recorder.count_due_step_call(1, 1, &names);
        recorder.record_step_call(
            &CallSample {
                number: 3,
                arrival: Time(0),
                sent: Time(10),
                first_byte: Time(20),
                done: Time(3_000_000),
                stage: 1,
                outcome: Outcome::Ok,
                bytes_sent: 1,
                bytes_received: 1,
            },
            1,
            &names,
        );
        recorder.record_pause(1, 80_000_000, 40);
        recorder.stage_mut(1).due += 1;
        recorder.record_cut_off_call(1, 90_000_000);
        let address = recorder.address_number("127.0.0.1:1");
        recorder.count_call_at_address(address, 1, Outcome::Reset);
        recorder.count_connect_failure_to_address(address, 1);
        recorder.record_first_message(1, 4_000);
        recorder.record_message_gap(1, 50);
        recorder.count_messages_sent(1, 3);
        recorder.record_connection(
            1,
            &ConnectPhases {
                connect_ns: 90_000,
                handshake_ns: 1_000_000,
                ready_ns: 200_000,
                ..ConnectPhases::default()
            },
        );
        recorder.record_batch_start(BatchStart {
            batch: 7,
            client_ns: 1_234_567_890,
            server_ns: None,
            done: None,
        });
        recorder
            .stage_mut(1)
            .connect_failures
            .add(Outcome::NoPorts, 1);
        recorder.add_failure_detail(Outcome::Reset, "peer \"said\"\nso");
        let mut taken = RecordedInterval::default();
        taken.merge(&recorder.take_interval(None));
        IntervalRecord {
            index: 3,
            start_offset: Duration::from_secs(3),
            length: Duration::from_micros(1_000_123),
            stages: taken
                .recorded_stages()
                .map(|(i, s)| (i, s.clone()))
                .collect(),
            in_flight: 2,
            backlog: 1,
            connections_open: 1,
            users: Some(UserLevels {
                in_flight: 4,
                waiting: 1,
                in_flight_max: 9,
                waiting_max: 2,
                in_flight_us: 5_000_000,
                waiting_us: 70_000,
            }),
            busiest_worker_ratio: 0.25,
            client: Some(ResourceUsage {
                cpu_user_us: 1,
                cpu_system_us: Some(2),
                rss_bytes: 3,
                rss_bytes_before: Some(2),
                descriptors: 4,
                threads: 5,
            }),
            server: None,
            machine: None,
            memory: Vec::new(),
            details: taken.details,
            batches: taken.turns,
        }
    }

    #[test]
    fn interval_record_round_trips() {
        let written = interval();
        let line = written.to_line();
        assert!(!line.contains('\n'));
        assert_eq!(IntervalRecord::from_line(&line), Ok(written));
    }

    #[test]
    fn malformed_line_errors_name_cause() {
        let good = interval().to_line();
        let problem = |line: &str| IntervalRecord::from_line(line).unwrap_err();
        assert!(problem(&good[..good.len() / 2]).contains("EOF"));
        assert!(problem(&good.replace("\"RESET\"", "\"NONSENSE\"")).contains("NONSENSE"));
        assert!(problem(&good.replace("lag_ns", "leg_ns")).contains("leg_ns"));
        assert!(problem(&good.replace("\"HIST", "\"????")).contains("base64"));
        assert!(problem(&good.replace("\"HIST", "\"AAAA")).contains("HdrHistogram"));
    }
}
