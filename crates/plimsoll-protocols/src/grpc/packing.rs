//! Answers packed with gzip (RFC 1952; gRPC over HTTP/2, "Compressed-Flag").
//!
//! They are unpacked only to see that they
//! can be, and how large they are: what comes out is counted and dropped, so a message
//! of any size takes the memory of the decoder, and one over the limit is refused as
//! soon as it is.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use flate2::write::GzDecoder;

use super::call::Shapes;
use super::decodable::{Walk, Walking};
use super::message::{MessageError, Sink};

/// Counts a message's bytes, up to a limit, and walks through them.
#[derive(Debug)]
struct Counter {
    left: u32,
    overflowed: bool,
    shapes: Option<Arc<Shapes>>,
    walk: Walk,
    undecodable: Option<MessageError>,
}

impl Counter {
    fn new(limit: u32, shapes: Option<Arc<Shapes>>) -> Counter {
        Counter {
            left: limit,
            overflowed: false,
            shapes,
            walk: Walk::default(),
            undecodable: None,
        }
    }

    /// Does the next step of the walk.
    fn walking(
        &mut self,
        step: impl FnOnce(&mut Walking<'_>) -> Result<(), MessageError>,
    ) -> Result<(), MessageError> {
        let Some(shapes) = &self.shapes else {
            return Ok(());
        };
        let walk = &mut self.walk;
        let stepped = step(&mut Walking { walk, shapes });
        self.undecodable = stepped.err();
        stepped
    }
}

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match u32::try_from(bytes.len())
            .ok()
            .and_then(|n| self.left.checked_sub(n))
        {
            Some(left) => {
                self.left = left;
                match self.walking(|walking| walking.piece(bytes)) {
                    Ok(()) => Ok(bytes.len()),
                    Err(_) => Err(io::ErrorKind::InvalidData.into()),
                }
            }
            None => {
                self.overflowed = true;
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The packed message that one stream is in the middle of.
#[derive(Debug)]
pub(super) struct Unpacking {
    decoder: Option<Box<GzDecoder<Counter>>>,
    limit: u32,
    /// Bytes of it were fed to the decoder.
    fed: bool,
    /// A message that is not packed.
    plain: Counter,
}

impl Unpacking {
    pub(super) fn new(limit: u32, shapes: Option<Arc<Shapes>>) -> Unpacking {
        Unpacking {
            decoder: None,
            limit,
            fed: false,
            plain: Counter::new(limit, shapes),
        }
    }

    /// Between two messages, or in one that is not packed.
    pub(super) fn is_idle(&self) -> bool {
        self.decoder.is_none() && self.plain.walk.is_new()
    }

    fn why(&self) -> MessageError {
        let decoder = self.decoder.as_ref();
        if let Some(undecodable) = decoder.and_then(|d| d.get_ref().undecodable) {
            return undecodable;
        }
        match &self.decoder {
            Some(decoder) if decoder.get_ref().overflowed => {
                MessageError::UnpacksTooLarge { limit: self.limit }
            }
            _ => MessageError::NotGzip,
        }
    }
}

impl Sink for Unpacking {
    fn begin_packed(&mut self) -> Result<(), MessageError> {
        self.fed = false;
        let counter = Counter::new(self.limit, self.plain.shapes.clone());
        self.decoder = Some(Box::new(GzDecoder::new(counter)));
        Ok(())
    }

    fn piece(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let Some(decoder) = &mut self.decoder else {
            return self.plain.walking(|walking| walking.piece(bytes));
        };
        self.fed |= !bytes.is_empty();
        decoder.write_all(bytes).map_err(|_| self.why())
    }

    fn end(&mut self) -> Result<(), MessageError> {
        let Some(decoder) = &mut self.decoder else {
            return self.plain.walking(|walking| walking.end());
        };
        if self.fed {
            decoder.try_finish().map_err(|_| self.why())?;
        }
        if let Some(mut decoder) = self.decoder.take() {
            decoder.get_mut().walking(|walking| walking.end())?;
        }
        Ok(())
    }
}

/// What one connection has begun to unpack, by stream.
#[derive(Debug, Default)]
pub(super) struct Unpackers {
    begun: BTreeMap<u32, Unpacking>,
    /// The last encoding that answers declared and that was not offered.
    pub(super) unknown: Option<Box<str>>,
}

impl Unpackers {
    /// Takes the unpacking of a stream out, to be handed back with [`Unpackers::keep`].
    pub(super) fn take(
        &mut self,
        stream: u32,
        limit: u32,
        shapes: &Option<Arc<Shapes>>,
    ) -> Unpacking {
        self.begun
            .remove(&stream)
            .unwrap_or_else(|| Unpacking::new(limit, shapes.clone()))
    }

    pub(super) fn keep(&mut self, stream: u32, unpacking: Unpacking) {
        if !unpacking.is_idle() {
            self.begun.insert(stream, unpacking);
        }
    }

    /// The stream's call is over.
    pub(super) fn forget(&mut self, stream: u32) {
        self.begun.remove(&stream);
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{MessageReader, write_message};
    use super::*;

    fn packed(message: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let gzip = Some(crate::grpc::Compression::Gzip);
        write_message(&mut out, gzip, |out| out.extend_from_slice(message));
        out
    }

    fn read(bytes: &[u8], chunk: usize, limit: u32) -> Result<u16, MessageError> {
        let mut reader = MessageReader::NEW;
        let mut unpacking = Unpacking::new(limit, None);
        for chunk in bytes.chunks(chunk) {
            reader.read_into(&mut unpacking, chunk, limit)?;
        }
        assert!(unpacking.is_idle() && !reader.is_inside());
        Ok(reader.whole())
    }

    #[test]
    fn what_is_packed_is_unpacked_in_any_split() {
        let mut bytes = packed(&[7; 5000]);
        assert!(bytes.len() < 100, "{}", bytes.len());
        bytes.extend_from_slice(&[0, 0, 0, 0, 1, 9]);
        bytes.extend_from_slice(&packed(b""));
        // A packed message of no bytes at all is an empty one.
        bytes.extend_from_slice(&[1, 0, 0, 0, 0]);
        for chunk in [1, 2, 7, 64, 4096] {
            assert_eq!(read(&bytes, chunk, 5000), Ok(4), "{chunk}");
        }
    }

    #[test]
    fn a_bomb_is_refused_at_the_limit() {
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
    fn what_is_no_gzip_is_reported() {
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
