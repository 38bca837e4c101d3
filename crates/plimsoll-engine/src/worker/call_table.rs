//! The calls in flight of one worker: a slab whose entries form a linked list sorted by due time.
//!
//! All calls of a run have the same relative deadline, so the head of the list always expires next, and no timer per
//! call is needed. Calls nearly always start in the order in which they were due, so a new one is usually appended.

use plimsoll_model::Time;

use crate::driver::CallId;

const NO_SLOT: u32 = u32::MAX;

/// The connection index of a call that is waiting to be sent again.
pub(crate) const NO_CONNECTION: u32 = u32::MAX;

/// A call that has been started and has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightCall {
    pub(crate) number: u64,
    /// The time at which the call was due, from which its response time and its deadline count.
    pub(crate) arrival: Time,
    /// The time at which the call was passed to the driver, from which its service time counts.
    pub(crate) sent: Time,
    /// The time at which a stream's last message arrived; [`Time::NEVER`] before the first.
    last_message: Time,
    pub(crate) connection: u32,
    pub(crate) stage: u8,
    /// Whether the call has been sent before and the server did not process it.
    pub(crate) retried: bool,
    /// How often the server refused the call for now, so that it was sent again.
    pub(crate) refusals: u8,
    /// Upper bound of the generator's own delay in sending the call, in units of [`GENERATOR_DELAY_UNIT_NS`], rounded up.
    generator_delay_units: u32,
    previous: u32,
    next: u32,
}

impl InFlightCall {
    pub(crate) fn new(
        number: u64,
        arrival: Time,
        sent: Time,
        connection: u32,
        stage: u8,
    ) -> InFlightCall {
        InFlightCall {
            generator_delay_units: 0,
            number,
            arrival,
            sent,
            last_message: Time::NEVER,
            connection,
            stage,
            retried: false,
            refusals: 0,
            previous: NO_SLOT,
            next: NO_SLOT,
        }
    }
}

/// Unit of [`InFlightCall::generator_delay_units`] in nanoseconds: delays of up to an hour fit into 32 bits.
const GENERATOR_DELAY_UNIT_NS: u64 = 1 << 10;

impl InFlightCall {
    /// Returns the call with `ns` nanoseconds as the upper bound of the generator's own delay in sending it.
    #[inline]
    #[must_use]
    pub(crate) fn with_generator_delay_ns(self, ns: u64) -> InFlightCall {
        let late = u32::try_from(ns.div_ceil(GENERATOR_DELAY_UNIT_NS)).unwrap_or(u32::MAX);
        InFlightCall {
            generator_delay_units: late,
            ..self
        }
    }

    /// Returns an upper bound of the generator's own delay in sending the call, in nanoseconds.
    #[inline]
    pub(crate) fn generator_delay_ns(&self) -> u64 {
        match self.generator_delay_units {
            u32::MAX => u64::MAX,
            late => u64::from(late) * GENERATOR_DELAY_UNIT_NS,
        }
    }
}

#[derive(Debug)]
pub(crate) struct CallTable {
    slots: Vec<InFlightCall>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl CallTable {
    pub(crate) fn new() -> CallTable {
        CallTable {
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NO_SLOT,
            newest: NO_SLOT,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a call. The slot is written in place, because constructing the call elsewhere and copying it would cost
    /// more than the rest of this function.
    #[inline(always)]
    pub(crate) fn insert(&mut self, call: InFlightCall) -> CallId {
        let newest = self.newest;
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.append_slot(),
        };
        self.slots[id as usize] = InFlightCall {
            previous: newest,
            next: NO_SLOT,
            ..call
        };
        self.newest = id;
        match self.slots.get_mut(newest as usize) {
            None => self.oldest = id,
            Some(before) => {
                before.next = id;
                if before.arrival > call.arrival {
                    self.move_to_due_position(id);
                }
            }
        }
        CallId(id)
    }

    /// Appends an unused slot and returns its index.
    #[cold]
    #[inline(never)]
    fn append_slot(&mut self) -> u32 {
        self.slots
            .push(InFlightCall::new(0, Time(0), Time(0), 0, 0));
        (self.slots.len() - 1) as u32
    }

    /// Moves the newest call backwards to its position by due time.
    #[cold]
    #[inline(never)]
    fn move_to_due_position(&mut self, id: u32) {
        let call = self.slots[id as usize];
        let mut next = call.previous;
        self.unlink(&call);
        let previous = loop {
            let previous = self.slots[next as usize].previous;
            if previous == NO_SLOT || self.slots[previous as usize].arrival <= call.arrival {
                break previous;
            }
            next = previous;
        };
        let moved = &mut self.slots[id as usize];
        (moved.previous, moved.next) = (previous, next);
        self.slots[next as usize].previous = id;
        match previous {
            NO_SLOT => self.oldest = id,
            previous => self.slots[previous as usize].next = id,
        }
    }

    #[inline(always)]
    fn unlink(&mut self, call: &InFlightCall) {
        match call.previous {
            NO_SLOT => self.oldest = call.next,
            previous => self.slots[previous as usize].next = call.next,
        }
        match call.next {
            NO_SLOT => self.newest = call.previous,
            next => self.slots[next as usize].previous = call.previous,
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: CallId) -> InFlightCall {
        let call = self.slots[id.0 as usize];
        self.unlink(&call);
        self.free.push(id.0);
        call
    }

    /// Records that a message of a stream has arrived. Returns the call's stage, the time of the previous message
    /// ([`Time::NEVER`] for the first), and the time at which the call was sent.
    #[inline]
    pub(crate) fn record_message(&mut self, id: CallId, now: Time) -> (u8, Time, Time) {
        let call = &mut self.slots[id.0 as usize];
        let before = std::mem::replace(&mut call.last_message, now);
        (call.stage, before, call.sent)
    }

    /// Marks a call that the server did not process as waiting to be sent again.
    pub(crate) fn mark_for_retry(&mut self, id: CallId) {
        let call = &mut self.slots[id.0 as usize];
        (call.connection, call.retried) = (NO_CONNECTION, true);
    }

    /// Marks a call that the server refused for now as waiting to be sent again.
    pub(crate) fn mark_refused(&mut self, id: CallId) {
        let call = &mut self.slots[id.0 as usize];
        (call.connection, call.refusals) = (NO_CONNECTION, call.refusals.saturating_add(1));
    }

    /// Assigns the call to another connection.
    pub(crate) fn assign_to_connection(&mut self, id: CallId, connection: u32) {
        self.slots[id.0 as usize].connection = connection;
    }

    /// Returns a call in flight.
    pub(crate) fn get(&self, id: CallId) -> &InFlightCall {
        &self.slots[id.0 as usize]
    }

    /// Returns the call that was due first.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<(CallId, &InFlightCall)> {
        match self.oldest {
            NO_SLOT => None,
            id => Some((CallId(id), &self.slots[id as usize])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64) -> InFlightCall {
        InFlightCall::new(number, Time(number), Time(number), 0, 0)
    }

    #[test]
    fn reordered_calls_expire_by_due_time() {
        let mut calls = CallTable::new();
        for number in [5, 2, 9, 7, 1, 8] {
            calls.insert(call(number));
        }
        let mut expired = Vec::new();
        while let Some((id, oldest)) = calls.oldest().map(|(id, c)| (id, c.number)) {
            expired.push(oldest);
            calls.remove(id);
        }
        assert_eq!(expired, [1, 2, 5, 7, 8, 9]);
        assert_eq!(calls.len(), 0);
    }

    #[test]
    fn oldest_call_stays_at_head() {
        let mut calls = CallTable::new();
        let ids: Vec<_> = (0..4).map(|n| calls.insert(call(n))).collect();
        calls.remove(ids[1]);
        assert_eq!(calls.oldest().unwrap().1.number, 0);
        calls.remove(ids[0]);
        assert_eq!(calls.oldest().unwrap().1.number, 2);
        let reused = calls.insert(call(9));
        assert_eq!(calls.len(), 3);
        calls.remove(ids[3]);
        calls.remove(ids[2]);
        assert_eq!(calls.oldest().unwrap().1.number, 9);
        calls.remove(reused);
        assert!(calls.oldest().is_none());
        assert_eq!(calls.len(), 0);
    }
}
