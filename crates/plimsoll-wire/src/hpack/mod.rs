//! HPACK, the header compression of HTTP/2 (RFC 7541).
//!
//! The decoder is complete and bounded: whatever bytes it is given, it ends with fields
//! or an [`HpackError`]. The encoder is made for requests that repeat: it is run once,
//! and its blocks are sent over and over; [`ListEncoder`] is for relays.
//!
//! Called by the gRPC driver, the canned server, the tracer and the sidecar.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub use decoder::{DecodedBlock, Decoder, Field};
pub use encoder::{
    BlockChoice, Encoder, ListEncoder, PeerTable, begin_literal, prefix_with_length,
};
pub use huffman::{decode as huffman_decode, encode as huffman_encode};

/// The dynamic table size that holds until SETTINGS say otherwise (RFC 9113, 6.5.2). Bytes.
pub const DEFAULT_TABLE_SIZE: u32 = 4096;

/// What an entry costs in the dynamic table besides its name and value (RFC 7541, 4.1). Bytes.
pub const ENTRY_OVERHEAD: usize = 32;

/// A header block that can't be decoded: the connection's compression state is lost.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    #[error("the header block ends inside a field (RFC 7541, 3.2)")]
    Truncated,
    #[error("an integer in the header block is over 32 bits (RFC 7541, 5.1)")]
    IntegerOverflow,
    #[error("a field refers to index {0}, which is not in the tables (RFC 7541, 2.3.3)")]
    BadIndex(u32),
    #[error("a Huffman string contains EOS (RFC 7541, 5.2)")]
    HuffmanEos,
    #[error("a Huffman string's padding is not up to 7 bits of ones (RFC 7541, 5.2)")]
    HuffmanPadding,
    #[error("a table size update is not at the start of its header block (RFC 7541, 4.2)")]
    MisplacedSizeUpdate,
    #[error("a table size update to {size} bytes is over the limit of {limit} (RFC 7541, 6.3)")]
    SizeUpdateTooLarge { size: u32, limit: u32 },
}
