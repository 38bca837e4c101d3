//! What a protocol measures besides its calls: one closed list of counters and one of
//! times, with stable names.
//!
//! The names are what run directories, reports and exports show, so a name is never
//! changed. Like everything recorded, measures merge by adding.

use crate::times::Times;

macro_rules! measures {
    ($kind:ident: $($name:ident $key:literal $explanation:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind {
            $(#[doc = $explanation] $name,)*
        }

        impl $kind {
            pub const ALL: &'static [$kind] = &[$($kind::$name,)*];

            /// The stable name.
            pub fn key(self) -> &'static str {
                match self { $($kind::$name => $key,)* }
            }

            /// What it is, for a person.
            pub fn explanation(self) -> &'static str {
                match self { $($kind::$name => $explanation,)* }
            }

            pub fn from_key(key: &str) -> Option<$kind> {
                $kind::ALL.iter().copied().find(|measure| measure.key() == key)
            }
        }
    };
}

measures! { Count:
    SessionsOk "sessions_ok" "sessions whose every query succeeded, and that were closed"
    SessionsFailed "sessions_failed" "sessions that lost a query, or that the API did not close"
    UsersOk "users_ok" "users (conversations, scripts of frames) whose every call succeeded"
    UsersFailed "users_failed" "users who lost a call, and did not go on"
    ClosesFailed "closes_failed" "sessions that the API did not close"
    QueriesGood "queries_good" "queries that succeeded within every bound of the plan's goodput"
    TokensReceived "tokens_received" "tokens received once, as expected"
    TokensMissing "tokens_missing" "tokens that were sent for a query and never received"
    TokensDuplicated "tokens_duplicated" "tokens received more than once"
    TokensOutOfOrder "tokens_out_of_order" "tokens received before one that was sent earlier"
    TokensStray "tokens_stray" "tokens of a query that had ended already"
    TokensPrompt "tokens_prompt" "tokens of prompts, as the service counts them in usage"
    TokensAnswer "tokens_answer" "tokens of answers, as the service counts them in usage"
    TokensCounted "tokens_counted" "tokens of answers, as the plan's tokenizer file counts them"
    AnswersUncounted "answers_uncounted" "answers that the tokenizer file has no count of"
    UsageMissing "usage_missing" "answers that succeeded, and whose service counted no tokens"
    Reconnects "reconnects" "sockets opened again in mid-session"
    ReconnectsFailed "reconnects_failed" "attempts at that which failed"
    SessionsReconnected "sessions_reconnected" "sessions that had to reconnect"
    EarlyAccepted "early_data_accepted" "requests that the server took with the first bytes of TLS (0-RTT)"
    EarlyRejected "early_data_rejected" "such requests that the server would not take, sent again after the handshake"
    HistoryGone "history_gone" "resumptions that the gateway could not grant"
    BytesPacked "bytes_packed" "bytes of packed bodies (gzip, deflate, br, zstd), as received"
    BytesUnpacked "bytes_unpacked" "bytes that came out of them"
    LinkConnections "link_connections" "connections whose bytes were counted"
    LinkBytesSent "link_bytes_sent" "bytes that TCP carried to the target, handshakes and framing included"
    LinkBytesReceived "link_bytes_received" "bytes that TCP carried from the target, handshakes and framing included"
}

measures! { TimeMeasure:
    SessionCreate "session_create" "request to answer of the session's creation"
    SocketOpen "socket_open" "connect to upgrade answered of the session's socket"
    TimeToFirstToken "time_to_first_token" "query due to its first token"
    FirstToken "first_token" "query sent to its first token"
    TokenGap "token_gap" "from one token to the next"
    TokenMean "time_per_token" "query's time after the first token, divided by the tokens after it"
    Reconnect "reconnect" "socket lost to socket open again"
}

/// What the protocol measured of one call. Zeros are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallMeasures {
    pub counts: Vec<(Count, u64)>,
    /// Nanoseconds.
    pub times: Vec<(TimeMeasure, u64)>,
}

impl CallMeasures {
    pub fn new(counts: &[(Count, u64)], times: &[(TimeMeasure, u64)]) -> CallMeasures {
        CallMeasures {
            counts: counts.iter().copied().filter(|(_, n)| *n > 0).collect(),
            times: times.iter().copied().filter(|(_, ns)| *ns > 0).collect(),
        }
    }

    /// 0 where it is not there.
    pub fn count(&self, count: Count) -> u64 {
        let found = self.counts.iter().find(|(c, _)| *c == count);
        found.map_or(0, |(_, n)| *n)
    }

    pub fn time_ns(&self, measure: TimeMeasure) -> Option<u64> {
        let found = self.times.iter().find(|(m, _)| *m == measure);
        found.map(|(_, ns)| *ns)
    }
}

/// Counters and times of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    counts: [u64; Count::ALL.len()],
    times: [Times; TimeMeasure::ALL.len()],
}

impl Default for Measures {
    fn default() -> Measures {
        Measures {
            counts: [0; Count::ALL.len()],
            times: std::array::from_fn(|_| Times::default()),
        }
    }
}

impl Measures {
    #[inline]
    pub fn add(&mut self, count: Count, n: u64) {
        self.counts[count as usize] += n;
    }

    #[inline]
    pub fn record(&mut self, measure: TimeMeasure, ns: u64) {
        self.times[measure as usize].record(ns);
    }

    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    pub fn times(&self, measure: TimeMeasure) -> &Times {
        &self.times[measure as usize]
    }

    pub(crate) fn times_mut(&mut self, measure: TimeMeasure) -> &mut Times {
        &mut self.times[measure as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|n| *n == 0) && self.times.iter().all(Times::is_empty)
    }

    pub fn merge(&mut self, other: &Measures) {
        for (ours, theirs) in self.counts.iter_mut().zip(other.counts) {
            *ours += theirs;
        }
        for (ours, theirs) in self.times.iter_mut().zip(&other.times) {
            ours.merge(theirs);
        }
    }

    /// Forget everything, keep the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.times.iter_mut().for_each(Times::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again_and_merging_adds() {
        for count in Count::ALL {
            assert_eq!(Count::from_key(count.key()), Some(*count));
        }
        for measure in TimeMeasure::ALL {
            assert_eq!(TimeMeasure::from_key(measure.key()), Some(*measure));
        }
        let mut one = Measures::default();
        one.add(Count::TokensReceived, 3);
        one.record(TimeMeasure::TokenGap, 50);
        let mut both = one.clone();
        both.merge(&one);
        assert_eq!(both.of(Count::TokensReceived), 6);
        assert_eq!(both.times(TimeMeasure::TokenGap).len(), 2);
        both.clear();
        assert!(both.is_empty());
    }
}
