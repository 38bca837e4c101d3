//! The description of a connection's bytes as text, for `--trace`.

/// The direction in which bytes were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The driver sent them to the peer.
    Sent,
    /// The peer sent them.
    Received,
}

/// A formatter that describes a connection's bytes as lines of text. Not on the hot path.
pub trait Tracer {
    /// Appends the lines that describe `bytes`. An incomplete frame is kept for the next call.
    fn trace_bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>);
}
