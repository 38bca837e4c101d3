//! Calls in flight on one upstream connection, by the id that the sidecar gave them.
//!
//! Ids are ours to choose: the place in the table is the low part of the id, so an answer
//! finds its call without a search, and an id is not used again for a long time.

use plimsoll_model::Time;
use plimsoll_protocols::relayed::Manner;

/// Whom the answer goes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The token of the downstream connection.
    pub(super) from: u64,
    /// The id that it knows the call by.
    pub(super) id: u64,
    pub(super) manner: Manner,
    pub(super) began: Time,
    pub(super) deadline: Time,
    /// Of the request.
    pub(super) bytes: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
}

#[derive(Clone, Debug)]
struct Slot {
    id: u32,
    call: Option<Call>,
}

/// Places of the table, at most; the rest of an id counts how often its place was used.
const PLACE_BITS: u32 = 20;

impl Calls {
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Takes the call in and gives it an id; `None` where the table is full.
    /// Ids have 32 bits, and the highest is never given.
    pub(super) fn insert(&mut self, call: Call) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place as usize,
            None if self.slots.len() < 1 << PLACE_BITS => {
                let id = self.slots.len() as u32;
                self.slots.push(Slot { id, call: None });
                self.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[place];
        slot.id = slot.id.wrapping_add(1 << PLACE_BITS);
        slot.call = Some(call);
        self.open += 1;
        Some(slot.id.into())
    }

    /// The call that an answer belongs to.
    pub(super) fn take(&mut self, id: u64) -> Option<Call> {
        let id = u32::try_from(id).ok()?;
        let place = id & ((1 << PLACE_BITS) - 1);
        let slot = self.slots.get_mut(place as usize)?;
        if slot.id != id {
            return None;
        }
        let call = slot.call.take()?;
        self.open -= 1;
        self.free.push(place);
        Some(call)
    }

    /// Every call whose time is over at `now` ([`Time::NEVER`]: every call).
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Call> {
        let mut due = Vec::new();
        if self.open == 0 {
            return due;
        }
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if slot.call.is_some_and(|call| call.deadline <= now) {
                due.extend(slot.call.take());
                self.open -= 1;
                self.free.push(place as u32);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: u64, deadline: u64) -> Call {
        Call {
            from: 0,
            id,
            manner: Manner::default(),
            began: Time::ZERO,
            deadline: Time(deadline),
            bytes: 0,
        }
    }

    #[test]
    fn answers_find_their_calls_once() {
        let mut calls = Calls::default();
        let (a, b) = (
            calls.insert(call(7, 1)).unwrap(),
            calls.insert(call(7, 2)).unwrap(),
        );
        assert_ne!(a, b);
        assert_eq!(calls.take(b).unwrap().deadline, Time(2));
        assert!(calls.take(b).is_none() && calls.take(0xffff_ffff).is_none());
        // The place is used again, under another id.
        let c = calls.insert(call(9, 3)).unwrap();
        assert_ne!(c, b);
        assert!(calls.take(b).is_none());
        let due = calls.take_due(Time(1));
        assert_eq!((due.len(), due[0].id, calls.open()), (1, 7, 1));
        assert!(calls.take(a).is_none());
        let due = calls.take_due(Time::NEVER);
        assert_eq!((due.len(), calls.open()), (1, 0));
    }
}
