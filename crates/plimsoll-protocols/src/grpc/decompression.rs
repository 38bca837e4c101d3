//! Decompresses responses in gzip (RFC 1952; gRPC over HTTP/2, "Compressed-Flag").
//!
//! Messages are decompressed only to check that they are valid gzip, within the limit, and of the type that the method
//! returns. The output is validated and dropped, so a message of any size takes little memory, and a message over the
//! limit is rejected as soon as its output exceeds the limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::call::MessageShapes;
use super::message::{MessageError, MessageSink};
use super::wire_validator::{ValidatingSink, WireValidator};
use crate::shared::unpacking::{ContentCoding, UnpackError, Unpacker};

/// The state of one stream's messages, compressed or not.
#[derive(Debug)]
pub(super) struct StreamUnpacker {
    /// The decompressor of the current message; `None`: the current message is not compressed.
    unpacker: Option<Box<Unpacker>>,
    limit: u32,
    shapes: Option<Arc<MessageShapes>>,
    validator: WireValidator,
}

impl StreamUnpacker {
    pub(super) fn new(limit: u32, shapes: Option<Arc<MessageShapes>>) -> StreamUnpacker {
        StreamUnpacker {
            unpacker: None,
            limit,
            shapes,
            validator: WireValidator::default(),
        }
    }

    /// Returns true between two messages, and in an uncompressed message that is not validated.
    pub(super) fn is_idle(&self) -> bool {
        self.unpacker.is_none() && self.validator.is_new()
    }

    /// Runs `step` of the validation, if responses are validated.
    fn validate(
        &mut self,
        step: impl FnOnce(&mut ValidatingSink<'_>) -> Result<(), MessageError>,
    ) -> Result<(), MessageError> {
        let Some(shapes) = &self.shapes else {
            return Ok(());
        };
        let walk = &mut self.validator;
        step(&mut ValidatingSink {
            validator: walk,
            shapes,
        })
    }

    fn message_error(&self, error: UnpackError) -> MessageError {
        match error {
            UnpackError::TooLarge(_) => MessageError::UnpacksTooLarge { limit: self.limit },
            UnpackError::Corrupt(_) => MessageError::NotGzip,
        }
    }
}

impl MessageSink for StreamUnpacker {
    fn on_compressed_start(&mut self) -> Result<(), MessageError> {
        self.unpacker = Unpacker::new(ContentCoding::Gzip, self.limit.into());
        Ok(())
    }

    fn on_piece(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let Some(mut unpacker) = self.unpacker.take() else {
            return self.validate(|walking| walking.on_piece(bytes));
        };
        let mut walked = Ok(());
        let taken = unpacker.decode(bytes, &mut |plain| {
            if walked.is_ok() {
                walked = self.validate(|walking| walking.on_piece(plain));
            }
        });
        self.unpacker = Some(unpacker);
        walked.and(taken.map_err(|error| self.message_error(error)))
    }

    fn on_end(&mut self) -> Result<(), MessageError> {
        if let Some(mut unpacker) = self.unpacker.take() {
            let mut walked = Ok(());
            let ended = unpacker.finish(&mut |plain| {
                if walked.is_ok() {
                    walked = self.validate(|walking| walking.on_piece(plain));
                }
            });
            walked.and(ended.map_err(|error| self.message_error(error)))?;
        }
        self.validate(|walking| walking.on_end())
    }
}

/// The decompressors of one connection's partly received messages, by stream.
#[derive(Debug, Default)]
pub(super) struct StreamUnpackers {
    unpackers: BTreeMap<u32, StreamUnpacker>,
    /// The last encoding that a response declared although it was not offered.
    pub(super) unknown_encoding: Option<Box<str>>,
}

impl StreamUnpackers {
    /// Removes and returns the state of a stream; [`StreamUnpackers::put_back`] puts it back.
    pub(super) fn take(
        &mut self,
        stream: u32,
        limit: u32,
        shapes: &Option<Arc<MessageShapes>>,
    ) -> StreamUnpacker {
        self.unpackers
            .remove(&stream)
            .unwrap_or_else(|| StreamUnpacker::new(limit, shapes.clone()))
    }

    pub(super) fn put_back(&mut self, stream: u32, unpacking: StreamUnpacker) {
        if !unpacking.is_idle() {
            self.unpackers.insert(stream, unpacking);
        }
    }

    /// Discards the state of a stream whose call has ended.
    pub(super) fn discard_stream(&mut self, stream: u32) {
        self.unpackers.remove(&stream);
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{MessageReader, write_message};
    use super::*;

    fn packed(message: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let gzip = Some(crate::grpc::MessageCompression::Gzip);
        write_message(&mut out, gzip, |out| out.extend_from_slice(message));
        out
    }

    fn read(bytes: &[u8], chunk: usize, limit: u32) -> Result<u16, MessageError> {
        let mut reader = MessageReader::NEW;
        let mut unpacking = StreamUnpacker::new(limit, None);
        for chunk in bytes.chunks(chunk) {
            reader.read_into(&mut unpacking, chunk, limit)?;
        }
        assert!(unpacking.is_idle() && !reader.is_mid_message());
        Ok(reader.complete_message_count())
    }

    #[test]
    fn compressed_messages_decompress_in_any_split() {
        let mut bytes = packed(&[7; 5000]);
        assert!(bytes.len() < 100, "{}", bytes.len());
        bytes.extend_from_slice(&[0, 0, 0, 0, 1, 9]);
        bytes.extend_from_slice(&packed(b""));
        // A compressed message of length 0 is an empty message.
        bytes.extend_from_slice(&[1, 0, 0, 0, 0]);
        for chunk in [1, 2, 7, 64, 4096] {
            assert_eq!(read(&bytes, chunk, 5000), Ok(4), "{chunk}");
        }
    }

    #[test]
    fn decompression_bomb_is_rejected() {
        let bomb = packed(&vec![0; 8 << 20]);
        assert!(bomb.len() < 10_000);
        let limit = 1 << 20;
        let too_large = Err(MessageError::UnpacksTooLarge { limit });
        assert_eq!(read(&bomb, 1000, limit), too_large);
        assert_eq!(
            read(&bomb, 1 << 20, (8 << 20) - 1),
            Err(MessageError::UnpacksTooLarge {
                limit: (8 << 20) - 1
            })
        );
        assert_eq!(read(&bomb, 1000, 8 << 20), Ok(1));
    }

    #[test]
    fn invalid_gzip_is_reported() {
        let mut cut = packed(b"hello hello hello");
        let length = cut.len();
        cut.truncate(length - 3);
        cut[4] -= 3;
        let mut broken = packed(b"hello hello hello");
        broken[length - 6] ^= 1;
        for bytes in [&[1, 0, 0, 0, 3, 1, 2, 3][..], &cut, &broken] {
            assert_eq!(
                read(bytes, 4, 1000),
                Err(MessageError::NotGzip),
                "{bytes:?}"
            );
        }
    }
}
