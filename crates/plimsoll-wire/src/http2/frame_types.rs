//! Frame types and flags.

/// Frame types (RFC 9113, 6).
pub mod kind {
    super::super::named! { u8:
        /// The body of a message (§6.1).
        DATA = 0x0;
        /// Opens a stream, or ends one with trailers (§6.2).
        HEADERS = 0x1;
        /// Deprecated (§6.3).
        PRIORITY = 0x2;
        /// Ends a stream at once (§6.4).
        RST_STREAM = 0x3;
        /// The sender's configuration (§6.5).
        SETTINGS = 0x4;
        /// Announces a stream that the server opens (§6.6).
        PUSH_PROMISE = 0x5;
        /// Asks the peer for a response, or is that response (§6.7).
        PING = 0x6;
        /// Ends the connection (§6.8).
        GOAWAY = 0x7;
        /// Allows the peer to send more data (§6.9).
        WINDOW_UPDATE = 0x8;
        /// Continues a header block (§6.10).
        CONTINUATION = 0x9;
    }
}

/// Frame flags (RFC 9113, 6).
pub mod flags {
    /// SETTINGS and PING: the frame is an acknowledgement.
    pub const ACK: u8 = 0x1;
    /// DATA and HEADERS: the frame is the last one on its stream.
    pub const END_STREAM: u8 = 0x1;
    /// HEADERS, PUSH_PROMISE and CONTINUATION: the frame is the last one of its block.
    pub const END_HEADERS: u8 = 0x4;
    /// DATA, HEADERS and PUSH_PROMISE: the payload begins with the length of its padding.
    pub const PADDED: u8 = 0x8;
    /// HEADERS: the payload has five bytes of priority.
    pub const PRIORITY: u8 = 0x20;
}
