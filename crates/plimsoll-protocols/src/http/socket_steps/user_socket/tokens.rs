//! Accounts for the tokens of a query that a step awaits.

use plimsoll_engine::driver::{Event, TokenUsage};
use plimsoll_model::{Count, Outcome, Time};

use super::SocketStepDriver;
use crate::http::checks::to_printable;
use crate::shared::token_account::MessageEffect;

impl SocketStepDriver {
    /// Handles a message while the current step awaits tokens. `earlier`: the time of its arrival, if it arrived before
    /// the step began.
    pub(super) fn record_token_message(
        &mut self,
        data: &[u8],
        now: Time,
        earlier: Option<Time>,
        events: &mut Vec<Event>,
    ) {
        let (Some(account), Some(step)) = (&mut self.account, &self.call) else {
            return;
        };
        let (call, at) = (step.call, earlier.unwrap_or(now));
        let text = std::str::from_utf8(data).unwrap_or_default();
        match account.record_message(text, at) {
            Ok(MessageEffect::Recorded) => {}
            Ok(MessageEffect::Counted(count)) => events.push(Event::Count { call, count, n: 1 }),
            Ok(MessageEffect::Token { bytes }) => events.push(match earlier {
                None => Event::Token { call, bytes },
                Some(at) => Event::EarlierToken { call, bytes, at },
            }),
            Ok(MessageEffect::Done) => self.end_query(data, events),
            Err(_) => {
                let shown = to_printable(data);
                let text = format!("a message that is not a JSON object with a type: {shown}");
                self.end_call(Outcome::BadAnswer, Some(text), events);
            }
        }
    }

    /// Ends the query of the current step, whose `done` is `data`.
    fn end_query(&mut self, data: &[u8], events: &mut Vec<Event>) {
        let (Some(account), Some(step)) = (&mut self.account, &mut self.call) else {
            return;
        };
        let Some(done) = account.done() else {
            return;
        };
        let (call, judged, tokens) = (step.call, account.judge_query(done), account.take_query());
        let counts = [
            // Tokens with text are counted when they arrive.
            (Count::TokensReceived, tokens.empty),
            (Count::TokensMissing, judged.missing),
            (Count::TokensDuplicated, tokens.duplicated),
            (Count::TokensOutOfOrder, tokens.out_of_order),
        ];
        let counts = counts.into_iter().filter(|(_, n)| *n > 0);
        events.extend(counts.map(|(count, n)| Event::Count { call, count, n }));
        if let Some(sent) = done.tokens {
            let usage = TokenUsage {
                prompt: 0,
                answer: sent,
                streamed: sent,
            };
            events.push(Event::Usage { call, usage });
        }
        if judged.outcome.is_ok() {
            step.has_all_messages = true;
            self.answer = Some(Ok(data.to_vec()));
            return;
        }
        let text = judged.text.unwrap_or_else(|| to_printable(data));
        self.end_call(judged.outcome, Some(text), events);
    }
}
