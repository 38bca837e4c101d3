//! Calls that are reset before an upstream has answered them: as many at once as servers put up with.
//!
//! Servers end a connection on which many calls are reset that they have not begun to serve (CVE-2023-44487),
//! and all other calls with it. So no more than a few are reset in a row; the rest wait, unless they end by
//! themselves, until the upstream has shown that it goes on.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_wire::http2::{ErrorCode, write};

use super::http2::Http2;

/// Half of what the strictest servers take (20, of the Rust crate h2).
const MAX_AT_ONCE: u32 = 10;

/// An upstream that has sent nothing is given the next ones all the same.
const SILENCE: Duration = Duration::from_secs(1);

/// What is to be reset on a connection upstream.
#[derive(Debug, Default)]
pub(super) struct Resets {
    /// Since `last_sent` was last followed by a sign of life.
    sent: u32,
    last_sent: Time,
    waiting: VecDeque<(u32, ErrorCode)>,
}

impl Http2 {
    /// Resets a stream that the upstream has not answered, now or later. `ended`: this end has sent
    /// END_STREAM.
    pub(super) fn reset_unanswered(
        &mut self,
        stream: u32,
        code: ErrorCode,
        ended: write::End,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        // A connection that carries one client's calls is nobody else's.
        if self.owner.is_some() || self.resets.sent < MAX_AT_ONCE {
            self.resets.sent += 1;
            self.resets.last_sent = now;
            self.session.reset(stream, code, out);
        } else {
            self.session.abandon(stream, ended);
            self.resets.waiting.push_back((stream, code));
        }
    }

    /// Once a tick: resets more of the streams that wait for it. `heard`: when the upstream last sent
    /// something. Returns whether there is something to send.
    pub(super) fn reset_waiting(&mut self, heard: Time, now: Time, out: &mut Vec<u8>) -> bool {
        let resets = &mut self.resets;
        if heard > resets.last_sent || now >= resets.last_sent + SILENCE {
            resets.sent = 0;
        }
        let before = out.len();
        while resets.sent < MAX_AT_ONCE
            && let Some((stream, code)) = resets.waiting.pop_front()
        {
            if self.session.is_abandoned(stream) {
                self.session.reset(stream, code, out);
                resets.sent += 1;
                resets.last_sent = now;
            }
        }
        out.len() > before
    }
}
