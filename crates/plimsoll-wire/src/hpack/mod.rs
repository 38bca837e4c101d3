//! HPACK, the header compression of HTTP/2 (RFC 7541). Drivers, reference servers, the tracer and the sidecar use it.
//!
//! The decoder is complete, and its memory is bounded: for any input it returns fields or an [`HpackError`]. The
//! encoder is designed for repeated requests, whose blocks are encoded once and sent many times; [`FieldListEncoder`] is for
//! relays.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub use decoder::{DecodedBlock, Decoder, HeaderField};
pub use encoder::{
    BlockChoice, Encoder, FieldListEncoder, PeerTable, begin_literal, prefix_with_length,
};
pub use huffman::{decode as huffman_decode, encode as huffman_encode};

/// Initial size of the dynamic table in bytes, until SETTINGS change it (RFC 9113 §6.5.2).
pub const DEFAULT_TABLE_BYTES: u32 = 4096;

/// Size of a table entry in bytes in addition to its name and value (RFC 7541 §4.1).
pub const ENTRY_OVERHEAD_BYTES: usize = 32;

/// An error in a header block, after which the connection's compression state is lost.
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
