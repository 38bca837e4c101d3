//! Counters and times that a protocol measures in addition to its calls: two closed lists with stable names.
//!
//! Measures of several workers or intervals are merged by adding them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metrics::codes::codes;
use crate::metrics::times::TimeHistogram;

codes! {
    /// A number that a protocol counts in addition to its calls.
    Count(keyed, key, from_key):
    _ "sessions_ok" "sessions whose every query succeeded, and that were closed";
    _ "sessions_failed" "sessions that lost a query, or that the API did not close";
    UsersOk "users_ok" "users (conversations, scripts of frames, journeys) whose every call succeeded, retries aside";
    UsersFailed "users_failed" "users who stopped after a failed call";
    UsersStopped "users_stopped" "users on journeys that the end of the load ended before their last step";
    ClosesFailed "closes_failed" "sessions that the API did not close";
    QueriesGood "queries_good" "queries that succeeded within every bound of the plan's goodput";
    TokensReceived "tokens_received" "tokens received once, as expected; for streams over HTTP, pieces, including those of failed answers";
    PiecesAnswer "pieces_answer" "pieces of streams over HTTP that held tokens, of answers that succeeded";
    TokensMissing "tokens_missing" "tokens that were sent for a query and never received";
    TokensDuplicated "tokens_duplicated" "tokens received more than once";
    TokensOutOfOrder "tokens_out_of_order" "tokens received before one that was sent earlier";
    TokensStray "tokens_stray" "tokens received after their query had ended";
    TokensPrompt "tokens_prompt" "tokens of prompts, as the service counts them in usage";
    TokensAnswer "tokens_answer" "tokens of answers, as the service counts them in usage";
    TokensCounted "tokens_counted" "tokens of answers, as the plan's tokenizer file counts them";
    AnswersUncounted "answers_uncounted" "answers that the tokenizer file can't count";
    InputsAnswered "inputs_answered" "inputs that a model computed numbers of: texts embedded, documents ranked";
    UsageMissing "usage_missing" "answers that succeeded, but without token counts of the service";
    FinishStop "finish_stop" "answers, or choices, that a model ended by itself (finish_reason)";
    FinishLength "finish_length" "those that reached the limit of tokens";
    FinishToolCalls "finish_tool_calls" "those that ended to call a tool";
    FinishContentFilter "finish_content_filter" "those that a filter cut off";
    FinishError "finish_error" "those that ended with an error";
    FinishAbort "finish_abort" "those that the service aborted";
    FinishOther "finish_other" "those that ended for another reason";
    Reconnects "reconnects" "sockets opened again in mid-session";
    ReconnectsFailed "reconnects_failed" "failed attempts to open a socket again";
    _ "sessions_reconnected" "sessions that had to reconnect";
    EarlyAccepted "early_data_accepted" "requests that the server accepted as early data (0-RTT)";
    EarlyRejected "early_data_rejected" "requests that the server rejected as early data, sent again after the handshake";
    HistoryGone "history_gone" "resumptions that the gateway refused";
    BytesPacked "bytes_packed" "bytes of compressed bodies (gzip, deflate, br, zstd), as received";
    BytesUnpacked "bytes_unpacked" "bytes of these bodies after decompression";
    MessagesUnasked "messages_unasked" "messages on WebSockets that answered no call";
    StreamsEndedWithLoad "streams_ended_with_load" "endless streams that were closed when the load's time was up; they count as successful";
    ConnectionsSetAside "connections_set_aside" "HTTP/1.1 connections that were replaced while reading the rest of a finished call's body, because another call waited";
    CallsRetried "calls_retried" "calls that the server did not process (GOAWAY, REFUSED_STREAM, an idle connection that it closed), sent once more";
    CallsRefused "calls_refused" "calls that the server refused for now (429, or 503 with Retry-After) and that were sent again";
    RefusalsRetried "refusals_retried" "such answers after which a call was sent again; those after which it was not are failures";
    ContentBytes "content_bytes" "bytes of the contents of messages, sent and received, without their headers";
    LinkConnections "link_connections" "connections whose bytes were counted";
    LinkBytesSent "link_bytes_sent" "bytes that TCP carried to the target, handshakes and framing included";
    LimitWaits "limit_waits" "calls that waited because the plan's limit of calls in flight was reached";
    LimitReached "limit_reached_ns" "nanoseconds during which the plan's limit of calls in flight was reached";
    LinkBytesReceived "link_bytes_received" "bytes that TCP carried from the target, handshakes and framing included";
}

impl Count {
    /// The counters of answers by the reason for which a language model ended them.
    pub const FINISH_REASONS: [Count; 7] = [
        Count::FinishStop,
        Count::FinishLength,
        Count::FinishToolCalls,
        Count::FinishContentFilter,
        Count::FinishError,
        Count::FinishAbort,
        Count::FinishOther,
    ];

    /// Returns the name of one of [`Count::FINISH_REASONS`] in objectives, such as `length`.
    pub fn finish_reason(self) -> &'static str {
        self.key().trim_start_matches("finish_")
    }
}

codes! {
    /// A time, in nanoseconds: phases of connections, messages of streams, and times that only some protocols measure.
    TimeMeasure(keyed, key, from_key):
    Resolve "resolve" "name resolution";
    Connect "connect" "TCP handshake";
    Handshake "handshake" "TLS handshake";
    Ready "ready" "the protocol's greeting";
    Connection "connection" "all phases of a connection together";
    ColdTotal "cold_total" "beginning of the connection to the end of the call, of successful cold calls";
    FirstMessage "first_message" "call's actual send to its first message from the server";
    InterMessage "inter_message" "from a message from the server to the next on the same call";
    _ "session_create" "request to answer of the session's creation";
    SocketOpen "socket_open" "connect to upgrade answered of the session's socket";
    TimeToFirstToken "time_to_first_token" "query due to its first token, of those that succeeded";
    FirstToken "first_token" "query sent to its first token, of those that succeeded";
    TokenGap "token_gap" "from one token of a query to the next, of those that succeeded";
    TokenMean "time_per_token" "from a query's first token to its last, divided by the tokens that came after the first, of those that succeeded";
    Reconnect "reconnect" "socket lost to socket open again";
    Journey "journey" "user due to the end of the last step, of journeys that succeeded";
}

impl TimeMeasure {
    /// Returns whether only some protocols measure this time; the others belong to connections and messages.
    pub fn is_protocol_specific(self) -> bool {
        self.index() > TimeMeasure::InterMessage.index()
    }

    /// Returns whether this time concerns the tokens of an answer.
    pub fn is_about_tokens(self) -> bool {
        matches!(
            self,
            TimeMeasure::TimeToFirstToken
                | TimeMeasure::FirstToken
                | TimeMeasure::TokenGap
                | TimeMeasure::TokenMean
        )
    }
}

/// The protocol's own measurements of one call. Zeros are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "NamedMeasures", from = "NamedMeasures")]
pub struct CallMeasures {
    /// Counters, each at most once.
    pub counts: Vec<(Count, u64)>,
    /// Times in nanoseconds.
    pub times: Vec<(TimeMeasure, u64)>,
}

impl CallMeasures {
    /// Creates the measures of a call without those that are zero; times are in nanoseconds.
    pub fn new(counts: &[(Count, u64)], times: &[(TimeMeasure, u64)]) -> CallMeasures {
        CallMeasures {
            counts: counts.iter().copied().filter(|(_, n)| *n > 0).collect(),
            times: times.iter().copied().filter(|(_, ns)| *ns > 0).collect(),
        }
    }

    /// Returns the value of a counter; 0 if it is absent.
    pub fn count(&self, count: Count) -> u64 {
        let found = self.counts.iter().find(|(c, _)| *c == count);
        found.map_or(0, |(_, n)| *n)
    }

    /// Returns a time in nanoseconds; `None` if it is absent.
    pub fn time_ns(&self, measure: TimeMeasure) -> Option<u64> {
        let found = self.times.iter().find(|(m, _)| *m == measure);
        found.map(|(_, ns)| *ns)
    }
}

/// The serialised form of [`CallMeasures`], with the names of counters and times as keys.
#[derive(Serialize, Deserialize)]
struct NamedMeasures {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    counts: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    times_ns: BTreeMap<String, u64>,
}

impl From<CallMeasures> for NamedMeasures {
    fn from(measures: CallMeasures) -> NamedMeasures {
        let counts = measures.counts.into_iter();
        let times = measures.times.into_iter();
        NamedMeasures {
            counts: counts.map(|(c, n)| (c.key().to_owned(), n)).collect(),
            times_ns: times.map(|(m, ns)| (m.key().to_owned(), ns)).collect(),
        }
    }
}

impl From<NamedMeasures> for CallMeasures {
    /// Keys that this version does not know were written by a later one and are ignored.
    fn from(measures: NamedMeasures) -> CallMeasures {
        let counts = measures.counts.iter();
        let times = measures.times_ns.iter();
        CallMeasures {
            counts: counts
                .filter_map(|(key, n)| Some((Count::from_key(key)?, *n)))
                .collect(),
            times: times
                .filter_map(|(key, ns)| Some((TimeMeasure::from_key(key)?, *ns)))
                .collect(),
        }
    }
}

/// Counters and times of one stage. Times of phases that did not happen are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct StageMeasures {
    counts: [u64; Count::COUNT],
    times: [TimeHistogram; TimeMeasure::COUNT],
}

impl Default for StageMeasures {
    fn default() -> StageMeasures {
        StageMeasures {
            counts: [0; Count::COUNT],
            times: std::array::from_fn(|_| TimeHistogram::default()),
        }
    }
}

impl StageMeasures {
    /// Adds `n` to a counter.
    #[inline]
    pub fn add(&mut self, count: Count, n: u64) {
        self.counts[count.index()] += n;
    }

    /// Records one time.
    #[inline]
    pub fn record(&mut self, measure: TimeMeasure, ns: u64) {
        self.times[measure.index()].record(ns);
    }

    /// Returns the value of a counter.
    pub fn counter(&self, count: Count) -> u64 {
        self.counts[count.index()]
    }

    /// Returns the histogram of a time, in nanoseconds.
    pub fn times(&self, measure: TimeMeasure) -> &TimeHistogram {
        &self.times[measure.index()]
    }

    pub(crate) fn times_mut(&mut self, measure: TimeMeasure) -> &mut TimeHistogram {
        &mut self.times[measure.index()]
    }

    /// Returns whether nothing was counted and no time was recorded.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|n| *n == 0) && self.times.iter().all(TimeHistogram::is_empty)
    }

    /// Calls `f` with the key of each counter and its value, and with the key of each histogram and its number of
    /// times.
    ///
    /// # Errors
    /// Returns the first error of `f`.
    pub(crate) fn try_for_each_count<E>(
        &self,
        mut f: impl FnMut(&str, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        for (count, number) in Count::all().zip(self.counts) {
            f(count.key(), number)?;
        }
        for (measure, times) in TimeMeasure::all().zip(&self.times) {
            f(measure.key(), times.len())?;
        }
        Ok(())
    }

    /// Adds what another worker, interval or shard measured.
    pub fn merge(&mut self, other: &StageMeasures) {
        for (ours, theirs) in self.counts.iter_mut().zip(other.counts) {
            *ours += theirs;
        }
        for (ours, theirs) in self.times.iter_mut().zip(&other.times) {
            ours.merge(theirs);
        }
    }

    /// Resets all values and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.times.iter_mut().for_each(TimeHistogram::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measure_keys_round_trip_and_merge() {
        for count in Count::all() {
            assert_eq!(Count::from_key(count.key()), Some(count));
        }
        for measure in TimeMeasure::all() {
            assert_eq!(TimeMeasure::from_key(measure.key()), Some(measure));
        }
        let mut one = StageMeasures::default();
        one.add(Count::TokensReceived, 3);
        one.record(TimeMeasure::TokenGap, 50);
        let mut both = one.clone();
        both.merge(&one);
        assert_eq!(both.counter(Count::TokensReceived), 6);
        assert_eq!(both.times(TimeMeasure::TokenGap).len(), 2);
        both.clear();
        assert!(both.is_empty());
    }
}
