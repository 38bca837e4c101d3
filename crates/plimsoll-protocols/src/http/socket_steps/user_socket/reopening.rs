//! Opens a lost socket again.
//!
//! The driver waits for a pause, and asks for a connection. It then sends the upgrade of the step that has opened the
//! socket, with a new key. If steps await tokens, the service is asked to continue after the last message that has
//! arrived (`?after=N&epoch=E`). Pauses grow until a message arrives: opening a socket alone is no progress.

use plimsoll_engine::driver::{CallId, Event};
use plimsoll_model::{Count, Outcome, Time, TimeMeasure};

use super::{SelectedCall, SocketState, SocketStepDriver};
use crate::http::socket_steps::call::ReopeningRule;
use crate::shared::token_account::TokenAccount;

/// A socket that is opened again when it is lost.
pub(super) struct Reopening {
    /// The step that has opened the socket, with the user's values.
    opening: SelectedCall,
    /// The number of its call.
    number: u64,
    rule: ReopeningRule,
    /// Consecutive attempts since the last message.
    attempts: u32,
    /// When the socket was lost; [`Time::NEVER`] while it is open, or is being opened for the first time.
    lost_at: Time,
}

impl Reopening {
    /// Returns the reopening of the socket that `opening` is about to open; `None` if its step has no rule for it.
    pub(super) fn new(opening: &SelectedCall, number: u64) -> Option<Box<Reopening>> {
        Some(Box::new(Reopening {
            opening: opening.clone(),
            number,
            rule: opening.prepared.call.reopening?,
            attempts: 0,
            lost_at: Time::NEVER,
        }))
    }

    /// Begins with the shortest pauses again, since a message has arrived.
    pub(super) fn reset_attempts(&mut self) {
        self.attempts = 0;
    }

    /// Returns whether the socket was lost and is not open again.
    pub(super) fn is_lost(&self) -> bool {
        self.lost_at != Time::NEVER
    }

    /// Returns the step that has opened the socket.
    pub(super) fn opening(&self) -> &SelectedCall {
        &self.opening
    }
}

impl SocketStepDriver {
    /// Returns whether the socket was lost and is being opened again.
    pub(super) fn is_reopening(&self) -> bool {
        let reopening = self.reopening.as_ref();
        reopening.is_some_and(|reopening| reopening.is_lost())
    }

    /// Schedules an attempt to open the socket again, which was lost or could not be opened. Returns false if it is
    /// given up.
    pub(super) fn schedule_reopening(
        &mut self,
        outcome: Outcome,
        now: Time,
        events: &mut Vec<Event>,
    ) -> bool {
        let was_open = matches!(self.state, SocketState::Open);
        let Some(reopening) = &mut self.reopening else {
            return false;
        };
        if was_open {
            reopening.lost_at = now;
        } else if !reopening.is_lost() {
            return false;
        } else {
            events.push(count_once(Count::ReconnectsFailed));
        }
        if reopening.attempts >= reopening.rule.max_attempts || outcome == Outcome::SocketDenied {
            self.reopening = None;
            return false;
        }
        let backoff = reopening.rule.backoff;
        let pause = backoff.draw_pause(reopening.attempts, &mut self.random);
        reopening.attempts += 1;
        self.state = SocketState::Pausing(now + pause);
        true
    }

    /// Appends the upgrade request that opens the lost socket again.
    pub(super) fn write_upgrade_again(&mut self, now: Time, out: &mut Vec<u8>) {
        let Some(reopening) = &self.reopening else {
            return;
        };
        let (opening, number) = (reopening.opening.clone(), reopening.number);
        let none = TokenAccount::default();
        let account = self.account.as_deref().unwrap_or(&none);
        let waiting = self.waiting.iter().map(|message| &*message.data);
        let (last, epoch) = account.position_after(waiting);
        let mut query = String::new();
        if self.account.is_some() || last > 0 {
            query = format!("after={last}");
            if let Some(epoch) = epoch {
                query.push_str(&format!("&epoch={epoch}"));
            }
        }
        let begin = out.len();
        self.write_upgrade(&opening, number, now, out);
        append_query(out, begin, &query);
    }

    /// Counts the lost socket as open again.
    pub(super) fn record_reopened(&mut self, now: Time, events: &mut Vec<Event>) {
        let Some(reopening) = &mut self.reopening else {
            return;
        };
        let lost_at = std::mem::replace(&mut reopening.lost_at, Time::NEVER);
        if lost_at != Time::NEVER {
            events.push(count_once(Count::Reconnects));
            events.push(Event::Time {
                measure: TimeMeasure::Reconnect,
                ns: now.since(lost_at),
            });
        }
    }
}

/// Returns the event that adds 1 to a count, whether or not a call is in flight.
fn count_once(count: Count) -> Event {
    Event::Count {
        call: CallId(0),
        count,
        n: 1,
    }
}

/// Appends parameters to the query of the request that begins at `begin`.
fn append_query(out: &mut Vec<u8>, begin: usize, query: &str) {
    let request = &out[begin..];
    let line = request.split(|byte| *byte == b'\r').next();
    let line = line.unwrap_or_default();
    let Some(end) = line.iter().rposition(|byte| *byte == b' ') else {
        return;
    };
    if query.is_empty() {
        return;
    }
    let separator = if line[..end].contains(&b'?') {
        "&"
    } else {
        "?"
    };
    let added = format!("{separator}{query}");
    let at = begin + end;
    out.splice(at..at, added.into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_appended_to_request_line() {
        for (line, query, expected) in [
            ("GET /a HTTP/1.1", "after=3", "GET /a?after=3 HTTP/1.1"),
            (
                "GET /a?b=c HTTP/1.1",
                "after=3&epoch=5",
                "GET /a?b=c&after=3&epoch=5 HTTP/1.1",
            ),
            ("GET /a HTTP/1.1", "", "GET /a HTTP/1.1"),
        ] {
            let rest = "\r\nhost: a b?\r\n\r\n";
            let mut out = format!("before {line}{rest}").into_bytes();
            append_query(&mut out, 7, query);
            assert_eq!(
                String::from_utf8(out).unwrap(),
                format!("before {expected}{rest}")
            );
        }
    }
}
