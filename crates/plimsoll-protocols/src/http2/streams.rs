//! The streams of one connection, looked up by id.
//!
//! Ids increase by two and most calls end soon, so the streams are in a ring buffer indexed by id / 2; each
//! slot stores its stream's id. The ring starts with four slots and grows while it is well filled. If a new
//! stream's slot holds a stream that is still open and the ring is sparse, the old stream moves to a small
//! overflow list.

use plimsoll_engine::driver::CallId;
use plimsoll_engine::structures::prefetch::prefetch;
use plimsoll_wire::http2;

use super::ResponseState;

/// [`CallStream::call`] of a stream whose call ended before the stream.
pub(crate) const NO_CALL: CallId = CallId(u32::MAX);

/// [`CallStream::slot`] of a stream without further state.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// The maximum number of cancelled streams in the overflow list, where they are kept so that their late responses are
/// counted.
const MAX_CANCELLED_OVERFLOW: usize = 64;

/// The state of a stream: which frames may still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStreamState {
    /// The stream's call is in flight, or has ended before the stream ([`NO_CALL`]).
    Open,
    /// Reset at its call's deadline; a response that still arrives is late.
    Cancelled,
    /// Reset by Plimsoll for another reason, or above a GOAWAY's last stream: all further frames are ignored.
    Abandoned,
    /// The server sent RST_STREAM.
    ResetByPeer,
    /// The server sent END_STREAM.
    Ended,
}

#[derive(Clone, Copy, Debug)]
pub struct CallStream<A> {
    /// 0 in an empty slot.
    pub(crate) id: u32,
    pub(crate) call: CallId,
    /// The stream's send window in bytes; SETTINGS can make it negative (RFC 9113, 6.9.2).
    pub(crate) send_window: i32,
    /// The bytes of the request's body (`size`), and the number of them that wait for a window (`unsent`).
    pub(crate) size: u32,
    pub(crate) unsent: u32,
    /// The protocol's index of further state of the call. [`NO_SLOT`] after the call has ended, so that a
    /// reused stream need not be reset.
    pub(crate) slot: u32,
    pub(crate) answer: A,
    pub(crate) state: CallStreamState,
}

impl<A: ResponseState> CallStream<A> {
    const EMPTY: CallStream<A> = CallStream {
        id: 0,
        call: CallId(0),
        send_window: 0,
        size: 0,
        unsent: 0,
        slot: NO_SLOT,
        answer: A::NEW,
        state: CallStreamState::Ended,
    };

    #[inline(always)]
    fn begin(&mut self, id: u32, call: CallId, send_window: i32, size: u32, unsent: u32) {
        self.id = id;
        self.call = call;
        self.send_window = send_window;
        self.size = size;
        self.unsent = unsent;
        self.answer = A::NEW;
        self.state = CallStreamState::Open;
    }

    /// Returns true if the stream's slot in the ring may be reused.
    fn is_reusable(&self) -> bool {
        !matches!(
            self.state,
            CallStreamState::Open | CallStreamState::Cancelled
        )
    }
}

#[derive(Debug)]
pub(crate) struct CallStreams<A> {
    /// The ring buffer, whose length is 0 or a power of two.
    ring: Box<[CallStream<A>]>,
    overflow: Vec<CallStream<A>>,
    open_count: u32,
}

impl<A> Default for CallStreams<A> {
    fn default() -> CallStreams<A> {
        CallStreams {
            ring: Box::default(),
            overflow: Vec::new(),
            open_count: 0,
        }
    }
}

impl<A: ResponseState> CallStreams<A> {
    /// Returns the number of streams whose call is in flight.
    #[inline]
    pub(crate) fn open_count(&self) -> u32 {
        self.open_count
    }

    /// Returns the stream, if it is still stored.
    #[inline]
    pub(crate) fn find(&mut self, id: u32) -> Option<&mut CallStream<A>> {
        let place = self.slot_index(id);
        match self.ring.get(place) {
            Some(stream) if stream.id == id => Some(&mut self.ring[place]),
            _ if self.overflow.is_empty() => None,
            _ => self.overflow.iter_mut().find(|stream| stream.id == id),
        }
    }

    /// Prefetches the slots of the last started stream and of the next one.
    #[inline]
    pub(crate) fn prefetch(&self, next_id: u32) {
        for id in [next_id.wrapping_sub(2), next_id] {
            if let Some(stream) = self.ring.get(self.slot_index(id)) {
                prefetch(stream);
            }
        }
    }

    /// Returns the stream, if its call is in flight.
    #[inline]
    pub(crate) fn find_open(&mut self, id: u32) -> Option<&mut CallStream<A>> {
        self.find(id)
            .filter(|stream| stream.state == CallStreamState::Open)
    }

    /// Returns the stream for reading, if it is still stored.
    pub(crate) fn get(&self, id: u32) -> Option<&CallStream<A>> {
        let mut all = self
            .ring
            .get(self.slot_index(id))
            .into_iter()
            .chain(&self.overflow);
        all.find(|stream| stream.id == id)
    }

    /// Adds a stream whose call starts. Its id must be greater than all earlier ids.
    ///
    /// `send_window`, `size` and `unsent` are as in [`CallStream`]. The slot is written field by field, because
    /// copying a stream that was built elsewhere costs more than everything else here.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        id: u32,
        call: CallId,
        send_window: i32,
        size: u32,
        unsent: u32,
    ) {
        self.open_count += 1;
        let place = self.slot_index(id);
        match self.ring.get_mut(place) {
            Some(slot) if slot.is_reusable() => slot.begin(id, call, send_window, size, unsent),
            _ => self
                .find_free_slot(id)
                .begin(id, call, send_window, size, unsent),
        }
    }

    /// Ends the stream's call. `state`: which frames may still arrive on the stream.
    #[inline]
    pub(crate) fn close(&mut self, id: u32, state: CallStreamState) {
        debug_assert!(state != CallStreamState::Open);
        let place = self.slot_index(id);
        if let Some(stream) = self.ring.get_mut(place)
            && stream.id == id
        {
            self.open_count -= u32::from(stream.state == CallStreamState::Open);
            stream.state = state;
            stream.unsent = 0;
        } else {
            self.close_in_overflow(id, state);
        }
    }

    /// Ends the stream of a call whose request was sent completely and whose response has not begun. Returns
    /// `None`, and changes nothing, for any other stream.
    #[inline(always)]
    pub(crate) fn end_before_response(&mut self, id: u32) -> Option<&CallStream<A>> {
        let place = self.slot_index(id);
        let stream = self.ring.get_mut(place)?;
        let unanswered = stream.answer.is_new() && stream.slot == NO_SLOT;
        if stream.id != id
            || stream.state != CallStreamState::Open
            || stream.unsent > 0
            || !unanswered
        {
            return None;
        }
        self.open_count -= 1;
        stream.state = CallStreamState::Ended;
        Some(stream)
    }

    /// Returns the streams whose calls are in flight, in no particular order.
    pub(crate) fn iter_open(&mut self) -> impl Iterator<Item = &mut CallStream<A>> {
        let all = self.overflow.iter_mut().chain(self.ring.iter_mut());
        all.filter(|stream| stream.state == CallStreamState::Open)
    }

    /// Returns the id of the stream that carries `call`. Searches from the oldest stream on, since calls are
    /// mostly looked up oldest first.
    pub(crate) fn find_call(&self, call: CallId, next_id: u32) -> Option<u32> {
        let is_it =
            |stream: &&CallStream<A>| stream.state == CallStreamState::Open && stream.call == call;
        let (newest, oldest) = self
            .ring
            .split_at(self.slot_index(next_id).min(self.ring.len()));
        let mut all = self.overflow.iter().chain(oldest).chain(newest);
        all.find(is_it).map(|stream| stream.id)
    }

    /// Returns the bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.ring.len() + self.overflow.capacity()) * size_of::<CallStream<A>>()
    }

    /// Returns the index of a stream's slot in the ring. If the ring is empty, the index is past its end.
    #[inline]
    fn slot_index(&self, id: u32) -> usize {
        (id >> 1) as usize & self.ring.len().wrapping_sub(1)
    }

    /// Returns a slot for a new stream whose usual slot is in use.
    #[inline(never)]
    fn find_free_slot(&mut self, id: u32) -> &mut CallStream<A> {
        // With few streams in a large ring, the stream in the way is old and slow: growing would not help.
        let sparse =
            |streams: &CallStreams<A>| (streams.open_count as usize) * 4 < streams.ring.len();
        while self
            .ring
            .get(self.slot_index(id))
            .is_none_or(|slot| !slot.is_reusable())
            && !sparse(self)
        {
            self.grow();
        }
        let place = self.slot_index(id);
        let old = self.ring[place];
        if !old.is_reusable() {
            self.move_to_overflow(old);
            self.ring[place].slot = NO_SLOT;
        }
        &mut self.ring[place]
    }

    fn grow(&mut self) {
        let length = (self.ring.len() * 2).max(4);
        let grown = vec![CallStream::EMPTY; length].into_boxed_slice();
        let old = std::mem::replace(&mut self.ring, grown);
        // Streams that did not collide before can't collide in a ring of twice the length.
        for stream in old.into_iter().filter(|stream| stream.id != 0) {
            let place = self.slot_index(stream.id);
            self.ring[place] = stream;
        }
    }

    fn move_to_overflow(&mut self, old: CallStream<A>) {
        self.overflow.push(old);
        self.limit_cancelled_streams();
    }

    #[cold]
    fn close_in_overflow(&mut self, id: u32, state: CallStreamState) {
        let Some(place) = self.overflow.iter().position(|stream| stream.id == id) else {
            return;
        };
        let stream = &mut self.overflow[place];
        self.open_count -= u32::from(stream.state == CallStreamState::Open);
        stream.state = state;
        stream.unsent = 0;
        if stream.is_reusable() {
            self.overflow.remove(place);
        } else {
            self.limit_cancelled_streams();
        }
    }

    /// Removes the oldest cancelled stream if the overflow list has too many of them, because some servers never
    /// respond to them.
    fn limit_cancelled_streams(&mut self) {
        let is_cancelled = |stream: &CallStream<A>| stream.state == CallStreamState::Cancelled;
        let count = self
            .overflow
            .iter()
            .filter(|stream| is_cancelled(stream))
            .count();
        if count > MAX_CANCELLED_OVERFLOW
            && let Some(oldest) = self.overflow.iter().position(is_cancelled)
        {
            self.overflow.remove(oldest);
        }
    }
}

impl<A: ResponseState> http2::StreamWindows for CallStreams<A> {
    fn send_window(&mut self, id: u32) -> Option<&mut i32> {
        self.find_open(id).map(|stream| &mut stream.send_window)
    }

    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32> {
        self.iter_open().map(|stream| &mut stream.send_window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ResponseState for () {
        const NEW: () = ();
        fn is_new(&self) -> bool {
            true
        }
    }

    fn insert(streams: &mut CallStreams<()>, id: u32) {
        streams.insert(id, CallId(id), 0, 0, 0);
    }

    #[test]
    fn sequential_streams_keep_ring_small() {
        let mut streams = CallStreams::<()>::default();
        for id in (1..10_000).step_by(2) {
            insert(&mut streams, id);
            assert_eq!(streams.open_count(), 1);
            streams.close(id, CallStreamState::Ended);
        }
        assert_eq!(streams.ring.len(), 4);
        assert_eq!(
            streams.find(9_999).map(|s| s.state),
            Some(CallStreamState::Ended)
        );
        assert!(streams.find(1).is_none());
    }

    #[test]
    fn many_streams_in_flight_grow_ring() {
        let mut streams = CallStreams::<()>::default();
        for id in (1..=2_000).step_by(2) {
            insert(&mut streams, id);
        }
        assert_eq!(
            (
                streams.open_count(),
                streams.ring.len(),
                streams.overflow.len()
            ),
            (1_000, 1_024, 0)
        );
        for id in (1..=2_000).step_by(2) {
            assert_eq!(streams.find(id).map(|s| s.call), Some(CallId(id)));
            assert_eq!(streams.find_call(CallId(id), 2_001), Some(id));
        }
    }

    #[test]
    fn slow_stream_does_not_grow_ring() {
        let mut streams = CallStreams::<()>::default();
        insert(&mut streams, 1);
        for id in (3..1_000_000).step_by(2) {
            insert(&mut streams, id);
            streams.close(id, CallStreamState::Ended);
        }
        assert!(streams.ring.len() <= 16, "{}", streams.ring.len());
        assert_eq!(
            streams.find(1).map(|s| s.state),
            Some(CallStreamState::Open)
        );
        assert_eq!(streams.find_call(CallId(1), 1_000_001), Some(1));
        streams.close(1, CallStreamState::Ended);
        assert_eq!((streams.open_count(), streams.overflow.len()), (0, 0));
    }

    #[test]
    fn cancelled_slow_streams_do_not_accumulate() {
        let mut streams = CallStreams::<()>::default();
        for round in 0..1_000 {
            let slow = round * 200 + 1;
            insert(&mut streams, slow);
            for id in (slow + 2..slow + 200).step_by(2) {
                insert(&mut streams, id);
                streams.close(id, CallStreamState::Ended);
            }
            streams.close(slow, CallStreamState::Cancelled);
        }
        assert_eq!(streams.open_count(), 0);
        assert!(
            streams.overflow.len() <= MAX_CANCELLED_OVERFLOW,
            "{}",
            streams.overflow.len()
        );
    }

    #[test]
    fn cancelled_stream_memory_is_bounded() {
        let mut streams = CallStreams::<()>::default();
        for id in (1..10_000).step_by(2) {
            insert(&mut streams, id);
            streams.close(id, CallStreamState::Cancelled);
        }
        assert_eq!(streams.open_count(), 0);
        assert!(streams.overflow.len() <= MAX_CANCELLED_OVERFLOW);
        assert!(streams.ring.len() <= 16, "{}", streams.ring.len());
        assert_eq!(
            streams.find(9_901).map(|s| s.state),
            Some(CallStreamState::Cancelled)
        );
    }
}
