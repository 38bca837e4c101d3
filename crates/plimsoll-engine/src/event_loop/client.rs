//! What an event loop does not know itself: what its connections are for.
//!
//! There are two clients: drivers ([`crate::worker`]: one connection, many calls) and scripts
//! ([`crate::script::worker`]: one user, several connections). The loop is generic over its client, so
//! what is called here is called directly.

use plimsoll_model::schedule::Arrival;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Time};

use super::control::Control;
use super::share::Share;
use crate::loss::Loss;
use crate::network::{Ready, Resolved, Token};
use crate::tls::TlsClient;

/// What a client keeps.
pub trait Client {
    /// What it keeps with each connection.
    type Own;
    /// What it wants a connection for.
    type Wish: Copy;
    /// Calls of the warm-up count as calls of the load.
    const WARMUP_COUNTS: bool;
    /// Once nothing is under way and nothing follows, the run lasts for one more turn: an answer may come late.
    const AWAITS_LATE_ANSWERS: bool;

    /// How connections to a target, by its number, are secured; `None`: not at all.
    fn tls(&self, target: usize) -> Option<&TlsClient>;

    /// The trace ids that requests carry; `None`: they carry none.
    fn trace_ids(&self) -> Option<TraceIds>;

    /// Calls that were begun and have not ended.
    fn in_flight(&self) -> u64;

    /// Calls that are due and for which a connection is being made.
    fn connecting(&self) -> u64 {
        0
    }

    /// Something waits to be written.
    fn is_dirty(&self) -> bool {
        false
    }

    /// What is under way at the load's end is given up after the plan's drain time; otherwise it ends by
    /// itself.
    fn is_given_up(&self, share: &Share) -> bool;
}

/// Whether a connection that is wanted can be begun.
pub enum Grant {
    /// It may begin.
    Now,
    /// The first of those that are wanted waits, and so do the others.
    Later,
    /// It is not wanted any more.
    Never,
}

/// The steps of a turn that a client takes in its own way.
pub trait Steps<W> {
    /// A connection's turn comes soon, and its own memory has been asked for: asks for what it leads to.
    #[inline]
    fn prefetch(&self, _index: u32) {}

    /// A connection whose TCP is up is ready.
    fn serve(&mut self, control: &mut impl Control, index: u32, ready: Ready);

    /// A connection's TCP is up, and its TLS handshake has begun where it is secured.
    fn transport_is_up(&mut self, control: &mut impl Control, index: u32, now: Time);

    /// A connection is gone, or never came up.
    fn lost(&mut self, control: &mut impl Control, index: u32, loss: &Loss, now: Time);

    /// What a connection that is up, and whose time to come up is over, still waits for.
    fn still_waits_for(&self, _index: u32) -> Option<&'static str> {
        None
    }

    /// An answer to a question for addresses.
    fn resolved(&mut self, control: &mut impl Control, token: Token, found: Resolved);

    /// Whether the connection that is wanted for `wish` can be begun.
    fn grant(&mut self, control: &mut impl Control, wish: W, now: Time) -> Grant;

    /// Begins it.
    fn begin_connection(&mut self, control: &mut impl Control, wish: W, now: Time);

    /// The next moment at which one of the client's timers runs out.
    fn next_timer(&self) -> Time;

    /// Timers that have run out, those of the loop's connections and races included.
    fn expire(&mut self, control: &mut impl Control, now: Time);

    /// The load's time was up at `end`: nothing new begins, and what never ends by itself is ended.
    fn load_ended(&mut self, _control: &mut impl Control, _end: Time, _now: Time) {}

    /// Open loop: what arrived is begun, or waits.
    fn arrived(&mut self, control: &mut impl Control, arrival: Arrival, now: Time);

    /// Open loop: the deadline of what arrived in a stage had passed before the loop noticed it.
    fn came_too_late(&mut self, stage: u8);

    /// Open loop: what waits is begun, as far as there is room.
    fn start_backlog(&mut self, _now: Time) {}

    /// Closed loop: clients of kept connections begin what is due.
    fn issue_on_lanes(&mut self, _now: Time) {}

    /// Closed loop: a client that keeps no connection begins.
    fn begin(&mut self, control: &mut impl Control, number: u64, now: Time);

    /// What was begun has been begun: connect, and write what waits.
    fn flush(&mut self, control: &mut impl Control);

    /// Nothing is under way.
    fn is_idle(&self) -> bool;

    /// The run is over: what has not ended is counted with `outcome`, and connections are closed.
    fn end_everything(&mut self, control: &mut impl Control, outcome: Outcome, now: Time);
}
