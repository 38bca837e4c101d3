//! The account of the tokens that a service streams over a socket: whether each token of a query was received once, is
//! missing, was received twice or out of order, or belongs to a query that had already ended.
//!
//! An account observes the messages of one user's socket. It owns no connection, and its users tell it when a query
//! begins. If the service numbers its messages, the numbers and the count in the `done` message are checked. Otherwise
//! tokens are only counted. The expected number of tokens is known beforehand, announced by the service, or contained
//! in the `done` message.

mod message;
mod numbers;

use plimsoll_model::formats::quantity::plural;
use plimsoll_model::metrics::measure::Count;
use plimsoll_model::{Outcome, Time};

use self::message::TokenMessage;
use self::numbers::{ReceivedNumbers, TokenArrival};

/// The account of one user.
#[derive(Debug, Default)]
pub(crate) struct TokenAccount {
    numbers: ReceivedNumbers,
    /// The epoch of the numbers: a service that has restarted numbers its messages anew.
    epoch: Option<u64>,
    /// The number that the service gave to the execution of the current query, or of the last one.
    run_number: Option<u64>,
    /// The current query.
    query: Option<QueryTokens>,
}

/// The tokens of a query that have been received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryTokens {
    /// Tokens received once.
    pub(crate) received: u64,
    /// Those of them without text.
    pub(crate) empty: u64,
    pub(crate) duplicated: u64,
    pub(crate) out_of_order: u64,
    /// Bytes of the messages with tokens.
    pub(crate) bytes: u32,
    /// The number of tokens to expect, if it is known before the `done` message.
    expected: Option<u64>,
    done: Option<DoneMessage>,
}

/// The content of a `done` message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoneMessage {
    /// When it arrived.
    pub(crate) at: Time,
    /// The number of tokens that the service sent, if the message contains it.
    pub(crate) tokens: Option<u64>,
    finish: QueryEndReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueryEndReason {
    Stop,
    Cancelled,
    Error,
}

/// The effect of a message on the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageEffect {
    /// It is a token of the current query, with text of so many bytes, and was not received before.
    Token { bytes: u32 },
    /// It is an empty or repeated token of the current query, or has no effect.
    Recorded,
    /// It adds 1 to this count, and belongs to no query.
    Counted(Count),
    /// The `done` of the current query has arrived.
    Done,
}

/// A message that is not a JSON object with a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

/// The judgement of a query whose `done` has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryJudgement {
    pub(crate) outcome: Outcome,
    /// The number of tokens that were sent and not received.
    pub(crate) missing: u64,
    /// The reason why the query failed, if the outcome does not say it.
    pub(crate) text: Option<String>,
}

impl TokenAccount {
    /// Begins the next query. `expected`: the number of its tokens, if it is known.
    pub(crate) fn begin_query(&mut self, expected: Option<u64>) {
        self.numbers.forget_missing();
        self.query = Some(QueryTokens {
            expected,
            ..QueryTokens::default()
        });
    }

    /// Stores what the service has announced of the current query, as far as it has: the number of its execution, and
    /// the number of its tokens.
    pub(crate) fn announce(&mut self, run_number: Option<u64>, tokens: Option<u64>) {
        self.run_number = run_number.or(self.run_number);
        if let Some(query) = &mut self.query {
            query.expected = tokens.or(query.expected);
        }
    }

    /// Records a message that arrived at `at`.
    ///
    /// # Errors
    /// When the text is not a JSON object with a type. The account is then unchanged.
    pub(crate) fn record_message(
        &mut self,
        text: &str,
        at: Time,
    ) -> Result<MessageEffect, MalformedMessage> {
        let Ok(message) = serde_json::from_str::<TokenMessage<'_>>(text) else {
            return Err(MalformedMessage);
        };
        Ok(match &*message.kind {
            "token" => {
                self.update_epoch(message.epoch);
                self.record_token(&message, text.len())
            }
            "done" => {
                self.update_epoch(message.epoch);
                self.record_done(&message, at)
            }
            "resumed" if message.resumed == Some(false) => {
                self.numbers.restart();
                self.epoch = message.epoch;
                MessageEffect::Counted(Count::HistoryGone)
            }
            // Messages of unknown types are ignored.
            _ => MessageEffect::Recorded,
        })
    }

    fn update_epoch(&mut self, epoch: Option<u64>) {
        if let (Some(ours), Some(theirs)) = (self.epoch, epoch)
            && ours != theirs
        {
            self.numbers.restart();
        }
        self.epoch = epoch.or(self.epoch);
    }

    /// Returns whether a message belongs to the execution of a query that has already ended.
    fn is_stray(&self, message: &TokenMessage<'_>) -> bool {
        let has_ended = |query: &QueryTokens| query.done.is_some();
        self.query.as_ref().is_none_or(has_ended)
            || matches!((message.run, self.run_number), (Some(of), Some(run)) if of < run)
    }

    fn record_token(&mut self, message: &TokenMessage<'_>, length: usize) -> MessageEffect {
        let is_stray = self.is_stray(message);
        let arrived = self.numbers.record(message.seq);
        let Some(query) = self.query.as_mut().filter(|_| !is_stray) else {
            return MessageEffect::Counted(match arrived {
                TokenArrival::Duplicate => Count::TokensDuplicated,
                TokenArrival::New | TokenArrival::Late => Count::TokensStray,
            });
        };
        match arrived {
            TokenArrival::New => query.received += 1,
            TokenArrival::Late => {
                query.received += 1;
                query.out_of_order += 1;
            }
            TokenArrival::Duplicate => query.duplicated += 1,
        }
        self.run_number = message.run.or(self.run_number);
        query.bytes = query.bytes.saturating_add(length as u32);
        if arrived == TokenArrival::Duplicate {
            return MessageEffect::Recorded;
        }
        match message.content.as_deref() {
            Some("") => {
                query.empty += 1;
                MessageEffect::Recorded
            }
            text => MessageEffect::Token {
                bytes: text.map_or(0, str::len) as u32,
            },
        }
    }

    fn record_done(&mut self, message: &TokenMessage<'_>, at: Time) -> MessageEffect {
        let is_again = self.numbers.record(message.seq) == TokenArrival::Duplicate;
        let is_stray = self.is_stray(message);
        let Some(query) = self.query.as_mut().filter(|_| !is_stray && !is_again) else {
            return MessageEffect::Recorded;
        };
        query.done = Some(DoneMessage {
            at,
            tokens: message.tokens,
            finish: match message.finish.as_deref() {
                Some("error") => QueryEndReason::Error,
                Some("cancelled") => QueryEndReason::Cancelled,
                _ => QueryEndReason::Stop,
            },
        });
        MessageEffect::Done
    }

    /// Returns the `done` message of the current query, if it has arrived.
    pub(crate) fn done(&self) -> Option<DoneMessage> {
        self.query.as_ref()?.done
    }

    /// Returns the number of the last message and the epoch of its numbering, after which a service continues.
    pub(crate) fn position(&self) -> (u64, Option<u64>) {
        (self.numbers.highest(), self.epoch)
    }

    /// Returns the position after messages that have been received, and not been recorded yet.
    pub(crate) fn position_after<'a>(
        &self,
        messages: impl Iterator<Item = &'a [u8]>,
    ) -> (u64, Option<u64>) {
        let (mut highest, mut epoch) = self.position();
        let parsed =
            messages.filter_map(|text| serde_json::from_slice::<TokenMessage<'_>>(text).ok());
        let of_queries = |message: &TokenMessage<'_>| matches!(&*message.kind, "token" | "done");
        for message in parsed.filter(of_queries) {
            if let (Some(ours), Some(theirs)) = (epoch, message.epoch)
                && ours != theirs
            {
                highest = 0;
            }
            epoch = message.epoch.or(epoch);
            highest = highest.max(message.seq.unwrap_or(0));
        }
        (highest, epoch)
    }

    /// Judges the current query, whose `done` has arrived.
    pub(crate) fn judge_query(&self, done: DoneMessage) -> QueryJudgement {
        let query = self.query.unwrap_or_default();
        let received = query.received;
        let promised = query
            .expected
            .filter(|_| done.finish == QueryEndReason::Stop);
        let most = done.tokens.max(promised).unwrap_or(0);
        let judge = |outcome, text| QueryJudgement {
            outcome,
            missing: most.saturating_sub(received),
            text,
        };
        match done.finish {
            QueryEndReason::Error => return judge(Outcome::RunFailed, None),
            QueryEndReason::Cancelled => return judge(Outcome::Cancelled, None),
            QueryEndReason::Stop => {}
        }
        let sent = done.tokens.or(promised);
        let lost = done.tokens.is_some_and(|sent| received < sent)
            || sent.is_some_and(|sent| received > sent)
            || query.duplicated > 0
            || query.out_of_order > 0;
        if !lost && let Some(promised) = promised.filter(|n| received < *n) {
            let received = plural(received, "token");
            let text = format!("done after {received} instead of {promised}");
            return judge(Outcome::TokensShort, Some(text));
        }
        if !lost && received > 0 {
            return judge(Outcome::Ok, None);
        }
        let text = format!(
            "{received} of {} received, {}, {} out of order",
            sent.map_or("? tokens".to_owned(), |n| plural(n, "token")),
            plural(query.duplicated, "duplicate"),
            query.out_of_order
        );
        judge(Outcome::TokensLost, Some(text))
    }

    /// Ends the current query, and returns its tokens; those of no query are none.
    pub(crate) fn take_query(&mut self) -> QueryTokens {
        self.query.take().unwrap_or_default()
    }
}

impl QueryTokens {
    /// Returns the counts of the query's tokens.
    pub(crate) fn counts(&self) -> [(Count, u64); 3] {
        [
            (Count::TokensReceived, self.received),
            (Count::TokensDuplicated, self.duplicated),
            (Count::TokensOutOfOrder, self.out_of_order),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records messages, each a nanosecond after the one before, and returns their effects.
    fn record(account: &mut TokenAccount, from: u64, messages: &[&str]) -> Vec<MessageEffect> {
        let recorded = (from..).zip(messages).map(|(at, text)| {
            let effect = account.record_message(text, Time(at));
            effect.unwrap_or_else(|_| panic!("{text}"))
        });
        recorded.collect()
    }

    fn judge(account: &TokenAccount) -> (Outcome, u64) {
        let judged = account.judge_query(account.done().expect("a done"));
        (judged.outcome, judged.missing)
    }

    #[test]
    fn complete_query_is_ok() {
        let mut account = TokenAccount::default();
        account.begin_query(None);
        account.announce(Some(1), Some(3));
        let tokens = [
            r#"{"type":"token","content":"","seq":1,"run":1,"epoch":5}"#,
            r#"{"type":"token","content":"a","seq":2,"run":1,"epoch":5}"#,
            r#"{"type":"other"}"#,
            r#"{"type":"token","content":"b","seq":3,"run":1,"epoch":5}"#,
        ];
        let (token, other) = (MessageEffect::Token { bytes: 1 }, MessageEffect::Recorded);
        assert_eq!(
            record(&mut account, 10, &tokens),
            [other, token, other, token]
        );
        assert_eq!(account.done(), None);
        let done = r#"{"type":"done","seq":4,"run":1,"epoch":5,"tokens":3,"finish":"stop"}"#;
        assert_eq!(record(&mut account, 20, &[done]), [MessageEffect::Done]);
        assert_eq!(judge(&account), (Outcome::Ok, 0));
        assert_eq!(account.position(), (4, Some(5)));
        assert_eq!(account.done().expect("a done").at, Time(20));
        let query = account.take_query();
        assert_eq!((query.received, query.empty), (3, 1));
        // A `done` after its query ended has no effect.
        assert_eq!(record(&mut account, 30, &[done]), [MessageEffect::Recorded]);
        assert_eq!(account.take_query(), QueryTokens::default());
    }

    #[test]
    fn incomplete_queries_fail_by_cause() {
        let one = r#"{"type":"token","content":"a","seq":1}"#;
        let two = r#"{"type":"token","content":"b","seq":2}"#;
        let done = r#"{"type":"done","seq":9,"tokens":2}"#;
        let unnumbered = r#"{"type":"done"}"#;
        let failed = r#"{"type":"done","finish":"error"}"#;
        let cancelled = r#"{"type":"done","finish":"cancelled"}"#;
        for (expected, messages, outcome, missing) in [
            (None, &[one, two, done][..], Outcome::Ok, 0),
            (None, &[one, done], Outcome::TokensLost, 1),
            (None, &[one, one, two, done], Outcome::TokensLost, 0),
            (None, &[two, one, done], Outcome::TokensLost, 0),
            (None, &[unnumbered], Outcome::TokensLost, 0),
            (Some(1), &[one, two, done], Outcome::Ok, 0),
            (Some(2), &[one, unnumbered], Outcome::TokensShort, 1),
            (Some(1), &[one, two, unnumbered], Outcome::TokensLost, 0),
            (Some(2), &[one, failed], Outcome::RunFailed, 0),
            (Some(2), &[one, cancelled], Outcome::Cancelled, 0),
        ] {
            let mut account = TokenAccount::default();
            account.begin_query(expected);
            record(&mut account, 1, messages);
            assert_eq!(
                judge(&account),
                (outcome, missing),
                "{expected:?} {messages:?}"
            );
        }
    }

    #[test]
    fn tokens_of_ended_queries_are_stray() {
        let mut account = TokenAccount::default();
        let token = r#"{"type":"token","content":"a","seq":1,"run":1}"#;
        let early = record(&mut account, 1, &[token, token]);
        assert_eq!(
            early,
            [Count::TokensStray, Count::TokensDuplicated].map(MessageEffect::Counted)
        );
        account.begin_query(None);
        account.announce(Some(2), None);
        let older = r#"{"type":"token","content":"a","seq":2,"run":1}"#;
        let own = r#"{"type":"token","content":"a","seq":3,"run":2}"#;
        assert_eq!(
            record(&mut account, 3, &[older, own]),
            [
                MessageEffect::Counted(Count::TokensStray),
                MessageEffect::Token { bytes: 1 }
            ]
        );
        assert_eq!(account.take_query().received, 1);
    }

    #[test]
    fn numbering_restarts_with_epoch_or_lost_history() {
        let mut account = TokenAccount::default();
        account.begin_query(None);
        let of = |epoch| format!(r#"{{"type":"token","content":"a","seq":1,"epoch":{epoch}}}"#);
        let gone = r#"{"type":"resumed","resumed":false,"epoch":8}"#;
        let effects = record(&mut account, 1, &[&of(6), &of(7), gone, &of(8)]);
        assert_eq!(effects[2], MessageEffect::Counted(Count::HistoryGone));
        let query = account.take_query();
        assert_eq!((query.received, query.duplicated), (3, 0));
        assert_eq!(account.position(), (1, Some(8)));
    }

    #[test]
    fn position_follows_unrecorded_messages() {
        let mut account = TokenAccount::default();
        account.begin_query(None);
        record(
            &mut account,
            1,
            &[r#"{"type":"token","content":"a","seq":4,"epoch":1}"#],
        );
        let after = |texts: &[&str]| account.position_after(texts.iter().map(|t| t.as_bytes()));
        assert_eq!(after(&[]), (4, Some(1)));
        let (six, five) = (
            r#"{"type":"token","content":"a","seq":6}"#,
            r#"{"type":"done","seq":5,"epoch":1}"#,
        );
        let other = r#"{"type":"other","seq":9}"#;
        assert_eq!(after(&["[]", six, five, other]), (6, Some(1)));
        let anew = r#"{"type":"token","content":"a","seq":2,"epoch":3}"#;
        assert_eq!(after(&[six, anew]), (2, Some(3)));
        assert_eq!(account.position(), (4, Some(1)));
    }

    #[test]
    fn malformed_message_changes_nothing() {
        let mut account = TokenAccount::default();
        account.begin_query(None);
        for text in ["", "[]", "token", r#"{"content":"a"}"#] {
            assert_eq!(account.record_message(text, Time(1)), Err(MalformedMessage));
        }
        assert_eq!(account.take_query(), QueryTokens::default());
    }
}
