//! Calls in flight on one upstream connection, keyed by the id that the sidecar gave them.
//!
//! The low bits of an id are the call's index in the table, so an answer's call is found without a search. An id is not
//! reused for a long time.

use plimsoll_engine::structures::slab::GenerationalSlab;
use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::FrameFlavor;

/// A call in flight and the client that gets its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpstreamCall {
    /// The token of the client's connection.
    pub(super) client: u64,
    /// The id that the client gave the call.
    pub(super) id: u64,
    pub(super) flavor: FrameFlavor,
    pub(super) began: Time,
    pub(super) deadline: Time,
    /// Size of the request in bytes.
    pub(super) bytes: u32,
}

/// Ids have 32 bits. A route's `max_in_flight` keeps them below the highest id, which is reserved.
pub(super) type UpstreamCalls = GenerationalSlab<UpstreamCall, 20, 12>;

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: u64, deadline: u64) -> UpstreamCall {
        UpstreamCall {
            client: 0,
            id,
            flavor: FrameFlavor::default(),
            began: Time::ZERO,
            deadline: Time(deadline),
            bytes: 0,
        }
    }

    #[test]
    fn answers_find_their_calls_once() {
        let mut calls = UpstreamCalls::default();
        let (a, b) = (calls.insert(call(7, 1)), calls.insert(call(7, 2)));
        assert_ne!(a, b);
        assert_eq!(calls.remove(b).unwrap().deadline, Time(2));
        assert!(calls.remove(b).is_none() && calls.remove(0xffff_ffff).is_none());
        // The index is reused, under another id.
        let c = calls.insert(call(9, 3));
        assert_ne!(c, b);
        assert!(calls.remove(b).is_none());
        let due = calls.remove_if(|call| call.deadline <= Time(1));
        assert_eq!((due.len(), due[0].id, calls.len()), (1, 7, 1));
        assert!(calls.remove(a).is_none());
        let due = calls.remove_if(|_| true);
        assert_eq!((due.len(), calls.len()), (1, 0));
    }
}
