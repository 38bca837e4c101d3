//! Accounts for the tokens of a query: whether each was received once, is missing, was received twice or out of order,
//! or belongs to a query that had already ended.
//!
//! If a backend numbers its frames, the numbers and the count in the `done` frame are checked. Otherwise tokens are
//! only counted.

use std::borrow::Cow;

use serde::Deserialize;

/// A frame from the server, with the keys that the client reads; others are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct SessionFrame<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(default, borrow)]
    pub(super) content: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) seq: Option<u64>,
    #[serde(default)]
    pub(super) run: Option<u64>,
    #[serde(default)]
    pub(super) epoch: Option<u64>,
    #[serde(default)]
    pub(super) tokens: Option<u64>,
    #[serde(default, borrow)]
    pub(super) finish: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) resumed: Option<bool>,
}

/// The maximum number of gaps in a session's numbers that are remembered. A late frame of a forgotten gap counts as a
/// duplicate instead of out of order; its query fails either way.
const MAX_REMEMBERED_GAPS: usize = 1_024;

/// Tokens that a session has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenAccount {
    /// The highest number received in the session.
    pub(super) highest: u64,
    /// Ranges of lower numbers that have not been received.
    missing: Vec<(u64, u64)>,
    /// The account of the current query.
    pub(super) query: QueryAccount,
}

/// Tokens that one query has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueryAccount {
    pub(super) received: u64,
    pub(super) duplicated: u64,
    pub(super) out_of_order: u64,
    /// Tokens of earlier queries, or of no query.
    pub(super) stray: u64,
}

/// How a frame's number relates to the numbers received before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenArrival {
    New,
    /// New, but received after a frame with a higher number.
    Late,
    Duplicate,
}

impl TokenAccount {
    /// Starts the account of the next query.
    pub(super) fn begin_query(&mut self) {
        self.query = QueryAccount::default();
        self.missing = Vec::new();
    }

    /// Starts a new numbering of frames.
    pub(super) fn restart_numbering(&mut self) {
        self.highest = 0;
        self.missing = Vec::new();
    }

    /// Records the arrival of a frame. `seq` is its number, if it has one.
    pub(super) fn record_frame(&mut self, seq: Option<u64>) -> TokenArrival {
        let Some(seq) = seq else {
            return TokenArrival::New;
        };
        if seq > self.highest {
            if seq > self.highest + 1 {
                self.remember_gap(self.highest + 1, seq - 1);
            }
            self.highest = seq;
            return TokenArrival::New;
        }
        let Some(at) = self
            .missing
            .iter()
            .position(|(from, to)| (*from..=*to).contains(&seq))
        else {
            return TokenArrival::Duplicate;
        };
        let (from, to) = self.missing.remove(at);
        if from < seq {
            self.remember_gap(from, seq - 1);
        }
        if seq < to {
            self.remember_gap(seq + 1, to);
        }
        TokenArrival::Late
    }

    fn remember_gap(&mut self, from: u64, to: u64) {
        if self.missing.len() == MAX_REMEMBERED_GAPS {
            self.missing.remove(0);
        }
        self.missing.push((from, to));
    }

    /// Records a token of the current query.
    pub(super) fn record_token(&mut self, seq: Option<u64>) -> TokenArrival {
        let arrived = self.record_frame(seq);
        match arrived {
            TokenArrival::New => self.query.received += 1,
            TokenArrival::Late => {
                self.query.received += 1;
                self.query.out_of_order += 1;
            }
            TokenArrival::Duplicate => self.query.duplicated += 1,
        }
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_duplicate_tokens_are_distinguished() {
        let mut account = TokenAccount::default();
        account.begin_query();
        for (seq, arrived) in [
            (1, TokenArrival::New),
            (5, TokenArrival::New),
            (3, TokenArrival::Late),
            (3, TokenArrival::Duplicate),
            (2, TokenArrival::Late),
            (4, TokenArrival::Late),
            (4, TokenArrival::Duplicate),
            (6, TokenArrival::New),
            (1, TokenArrival::Duplicate),
        ] {
            assert_eq!(account.record_token(Some(seq)), arrived, "{seq}");
        }
        let query = account.query;
        assert_eq!(
            (query.received, query.duplicated, query.out_of_order),
            (6, 3, 3)
        );
        assert!(account.missing.is_empty());
        assert_eq!(account.highest, 6);
    }

    #[test]
    fn sequence_gap_tracking_is_bounded() {
        let mut account = TokenAccount::default();
        account.begin_query();
        for seq in (1..=100_001).step_by(2) {
            assert_eq!(account.record_token(Some(seq)), TokenArrival::New);
        }
        assert_eq!(account.missing.len(), MAX_REMEMBERED_GAPS);
        assert_eq!(account.record_token(Some(100_000)), TokenArrival::Late);
        assert_eq!(account.record_token(Some(2)), TokenArrival::Duplicate);
        assert_eq!(account.query.received, 50_002);
    }

    #[test]
    fn frames_from_any_backend_parse() {
        let read = |text: &str| serde_json::from_str::<SessionFrame<'_>>(text).is_ok();
        assert!(read(
            r#"{"type":"token","content":"a\u0301\"","seq":1,"run":1,"epoch":3,"ts":1.5}"#
        ));
        assert!(read(
            r#"{"type":"done","content":"","tokens":18,"finish":"stop","more":{"a":[1]}}"#
        ));
        assert!(read(r#"{"content":"x","type":"token"}"#));
        assert!(!read(r#"{"content":"x"}"#));
        assert!(!read("[]"));
    }

    proptest::proptest! {
        #[test]
        fn token_counts_are_order_independent(order in proptest::collection::vec(1u64..40, 0..120)) {
            let mut account = TokenAccount::default();
            account.begin_query();
            for seq in &order {
                account.record_token(Some(*seq));
            }
            let distinct: std::collections::BTreeSet<u64> = order.iter().copied().collect();
            let query = account.query;
            proptest::prop_assert_eq!(query.received, distinct.len() as u64);
            proptest::prop_assert_eq!(query.duplicated, (order.len() - distinct.len()) as u64);
            let missing: u64 = account.missing.iter().map(|(from, to)| to - from + 1).sum();
            proptest::prop_assert_eq!(missing + distinct.len() as u64, account.highest);
        }
    }
}
