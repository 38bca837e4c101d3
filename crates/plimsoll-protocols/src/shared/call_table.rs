//! The calls of one connection, looked up by the ids of their frames. Drivers of protocols that multiplex calls by id
//! use this module.
//!
//! The client chooses the ids, so the calls are in a ring buffer indexed by the low bits of the id; an id
//! whose slot holds a call in flight is skipped. The ring is at most half full, so that free ids are found
//! quickly.

use plimsoll_engine::driver::CallId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallSlotState {
    Free,
    Open,
    /// The call's deadline has passed; a response that still arrives is late.
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct CallSlot {
    id: u32,
    call: CallId,
    state: CallSlotState,
}

const FREE_SLOT: CallSlot = CallSlot {
    id: 0,
    call: CallId(0),
    state: CallSlotState::Free,
};

/// The result of looking up an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallLookup {
    Open(CallId),
    Late,
    Unknown,
}

#[derive(Debug)]
pub(crate) struct CallTable {
    /// The slots of the calls. The length is 0 or a power of two.
    ring: Box<[CallSlot]>,
    in_flight: u32,
    next_id: u32,
}

impl Default for CallTable {
    fn default() -> CallTable {
        CallTable {
            ring: Box::default(),
            in_flight: 0,
            next_id: 1,
        }
    }
}

impl CallTable {
    /// Returns the number of calls in flight.
    #[inline]
    pub(crate) fn in_flight_count(&self) -> u32 {
        self.in_flight
    }

    #[inline]
    fn slot_index(&self, id: u32) -> usize {
        id as usize & (self.ring.len().wrapping_sub(1))
    }

    /// Returns an id that no call in flight has.
    #[inline]
    pub(crate) fn new_id(&mut self) -> u32 {
        loop {
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            match self.ring.get(self.slot_index(id)) {
                Some(slot) if slot.state == CallSlotState::Open => {}
                _ => return id,
            }
        }
    }

    /// Adds a call and returns its id.
    #[inline]
    pub(crate) fn insert(&mut self, call: CallId) -> u32 {
        if self.ring.len() < (self.in_flight as usize + 1) * 2 {
            self.grow();
        }
        let id = self.new_id();
        let place = self.slot_index(id);
        self.ring[place] = CallSlot {
            id,
            call,
            state: CallSlotState::Open,
        };
        self.in_flight += 1;
        id
    }

    #[cold]
    fn grow(&mut self) {
        let length = (self.ring.len() * 2).max(4);
        let old = std::mem::replace(&mut self.ring, vec![FREE_SLOT; length].into());
        for slot in old {
            // Slots that did not collide before can't collide in a ring of twice the length.
            let place = self.slot_index(slot.id);
            if slot.state != CallSlotState::Free {
                self.ring[place] = slot;
            }
        }
    }

    /// Removes the call with this id and returns it.
    #[inline]
    pub(crate) fn take(&mut self, id: u32) -> CallLookup {
        let place = self.slot_index(id);
        let Some(slot) = self.ring.get_mut(place).filter(|slot| slot.id == id) else {
            return CallLookup::Unknown;
        };
        match std::mem::replace(&mut slot.state, CallSlotState::Free) {
            CallSlotState::Open => {
                self.in_flight -= 1;
                CallLookup::Open(slot.call)
            }
            CallSlotState::Cancelled => CallLookup::Late,
            CallSlotState::Free => CallLookup::Unknown,
        }
    }

    /// Marks a call whose deadline has passed as cancelled.
    pub(crate) fn cancel(&mut self, call: CallId) {
        let found = self
            .ring
            .iter_mut()
            .find(|slot| slot.state == CallSlotState::Open && slot.call == call);
        if let Some(slot) = found {
            slot.state = CallSlotState::Cancelled;
            self.in_flight -= 1;
        }
    }

    /// Removes all calls in flight and returns them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = CallId> {
        self.in_flight = 0;
        std::mem::take(&mut self.ring)
            .into_iter()
            .filter(|slot| slot.state == CallSlotState::Open)
            .map(|slot| slot.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn calls_are_found_by_id(
            steps in proptest::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut calls = CallTable { next_id: u32::MAX - 20, ..CallTable::default() };
            let mut open: BTreeMap<u32, u32> = BTreeMap::new();
            let mut number = 0;
            for (step, which) in steps {
                match step {
                    0 | 1 => {
                        let id = calls.insert(CallId(number));
                        prop_assert_eq!(open.insert(id, number), None);
                        number += 1;
                    }
                    _ if open.is_empty() => {
                        prop_assert_eq!(calls.take(7), CallLookup::Unknown);
                    }
                    step => {
                        let (&id, &call) = open.iter().nth(which.index(open.len())).unwrap();
                        open.remove(&id);
                        if step == 2 {
                            prop_assert_eq!(calls.take(id), CallLookup::Open(CallId(call)));
                            prop_assert_eq!(calls.take(id), CallLookup::Unknown);
                        } else {
                            calls.cancel(CallId(call));
                            prop_assert_eq!(calls.take(id), CallLookup::Late);
                        }
                    }
                }
                prop_assert_eq!(calls.in_flight_count() as usize, open.len());
            }
            let mut left: Vec<u32> = calls.drain().map(|call| call.0).collect();
            left.sort_unstable();
            let mut wanted: Vec<u32> = open.into_values().collect();
            wanted.sort_unstable();
            prop_assert_eq!(left, wanted);
        }
    }
}
