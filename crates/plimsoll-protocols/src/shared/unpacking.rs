//! Decodes compressed bodies (content codings, RFC 9110 §8.4) as they arrive, without ever buffering a whole body.
//! Supports the codings that curl supports.
//!
//! Invariant: at most [`MAX_CHUNK_BYTES`] bytes of decoded data are in memory, and one body decodes to no more
//! than a limit: a decompression bomb ends its call, not the client.
//!
//! This file is long because the four libraries differ in how they accept input and report the end of a body.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder};
use zstd::stream::zio::Writer;

/// The value of `accept-encoding` in requests that accept compressed responses.
pub(crate) const ACCEPT_ENCODING: &str = "gzip, deflate, br, zstd";

/// The number of encoded bytes that are passed to a decompression library at a time.
const INPUT_CHUNK_BYTES: usize = 1024;

/// The maximum number of decoded bytes of one input chunk; more indicate an attack.
const MAX_CHUNK_BYTES: usize = 16 << 20;

/// The capacity of the output buffer that is kept for the next chunk, in bytes.
const MAX_KEPT_OUTPUT_BYTES: usize = 64 << 10;

/// The largest zstd window that a client must support (RFC 9659): the base-2 logarithm of its size in bytes.
const MAX_ZSTD_WINDOW_LOG: u32 = 23;

/// A content coding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    /// The body is not encoded.
    #[default]
    Identity,
    Gzip,
    /// The zlib format (RFC 1950), or raw deflate data in its place.
    Deflate,
    Brotli,
    Zstd,
    /// Any other coding.
    Unknown,
}

/// The maximum number of codings of one body, the same as in curl.
const MAX_CODINGS: usize = 5;

/// The content codings of a body, in the order in which they were applied, filled up with `Identity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentCodings([ContentCoding; MAX_CODINGS]);

impl ContentCodings {
    /// The body is not encoded.
    pub(crate) const IDENTITY: ContentCodings =
        ContentCodings([ContentCoding::Identity; MAX_CODINGS]);

    /// Parses the values of `content-encoding`, each of which may list several codings.
    pub(crate) fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> ContentCodings {
        let mut codings = ContentCodings::IDENTITY;
        let names = values.flat_map(|value| value.split(|b| *b == b','));
        let applied = names
            .map(ContentCoding::from_name)
            .filter(|c| *c != ContentCoding::Identity);
        for (nth, coding) in applied.enumerate() {
            match codings.0.get_mut(nth) {
                Some(place) => *place = coding,
                None => return ContentCodings::from(ContentCoding::Unknown),
            }
        }
        codings
    }

    /// Returns whether all codings can be decoded.
    pub(crate) fn are_supported(self) -> bool {
        !self.0.contains(&ContentCoding::Unknown)
    }
}

impl From<ContentCoding> for ContentCodings {
    fn from(coding: ContentCoding) -> ContentCodings {
        let mut codings = ContentCodings::IDENTITY;
        codings.0[0] = coding;
        codings
    }
}

impl ContentCoding {
    /// Returns the coding of a name in `content-encoding`.
    fn from_name(name: &[u8]) -> ContentCoding {
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"identity" | b"none" => ContentCoding::Identity,
            b"gzip" | b"x-gzip" => ContentCoding::Gzip,
            b"deflate" => ContentCoding::Deflate,
            b"br" => ContentCoding::Brotli,
            b"zstd" => ContentCoding::Zstd,
            _ => ContentCoding::Unknown,
        }
    }
}

/// Why a body can't be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    #[error("a body that decompresses to more than {0} bytes")]
    TooLarge(u64),
    #[error("the body can't be decompressed: {0}")]
    Corrupt(io::Error),
}

/// The output of one chunk.
#[derive(Default)]
struct DecodedChunk {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Write for DecodedChunk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_CHUNK_BYTES {
            self.is_full = true;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decoder of the zlib format, and of the raw deflate data that many servers send in its place. The library's own
/// writer does not detect a truncated body.
struct Inflater {
    stream: Decompress,
    output: DecodedChunk,
    is_finished: bool,
    detection: ZlibDetection,
}

/// Whether the format has been detected. The first two bytes determine it.
enum ZlibDetection {
    Undecided,
    FirstByte(u8),
    Decided,
}

/// Returns whether these are the first two bytes of the zlib format (RFC 1950 §2.2).
fn is_zlib(first: u8, second: u8) -> bool {
    first & 0x0f == 8 && (u16::from(first) << 8 | u16::from(second)) % 31 == 0
}

impl Inflater {
    fn new(piece: DecodedChunk) -> Inflater {
        Inflater {
            stream: Decompress::new(true),
            output: piece,
            is_finished: false,
            detection: ZlibDetection::Undecided,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match (&self.detection, bytes) {
            (_, []) => Ok(()),
            (ZlibDetection::Undecided, [first]) => {
                self.detection = ZlibDetection::FirstByte(*first);
                Ok(())
            }
            (ZlibDetection::Undecided, [first, second, ..]) => {
                self.stream = Decompress::new(is_zlib(*first, *second));
                self.detection = ZlibDetection::Decided;
                self.inflate(bytes)
            }
            (ZlibDetection::FirstByte(first), [second, ..]) => {
                let first = *first;
                self.stream = Decompress::new(is_zlib(first, *second));
                self.detection = ZlibDetection::Decided;
                self.inflate(&[first])?;
                self.inflate(bytes)
            }
            (ZlibDetection::Decided, bytes) => self.inflate(bytes),
        }
    }

    fn inflate(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut out = [0; 16 << 10];
        loop {
            if self.is_finished {
                return match bytes {
                    [] => Ok(()),
                    _ => Err(io::Error::other("bytes after its end")),
                };
            }
            let (taken, given) = (self.stream.total_in(), self.stream.total_out());
            let status = self
                .stream
                .decompress(bytes, &mut out, FlushDecompress::None)?;
            let taken = (self.stream.total_in() - taken) as usize;
            let given = (self.stream.total_out() - given) as usize;
            bytes = &bytes[taken..];
            self.output.write_all(&out[..given])?;
            self.is_finished = status == Status::StreamEnd;
            if taken == 0 && given == 0 && !self.is_finished {
                return Ok(());
            }
        }
    }
}

/// The decoders, which take bytes and write their output to a [`DecodedChunk`].
enum DecoderBackend {
    Gzip(MultiGzDecoder<DecodedChunk>),
    Deflate(Inflater),
    Brotli(Box<DecompressorWriter<DecodedChunk>>),
    Zstd(Writer<DecodedChunk, Decoder<'static>>),
}

impl DecoderBackend {
    /// Makes a decoder; `None` if the coding needs none, or is unknown.
    fn new(coding: ContentCoding) -> Option<DecoderBackend> {
        let piece = DecodedChunk::default();
        Some(match coding {
            ContentCoding::Identity | ContentCoding::Unknown => return None,
            ContentCoding::Gzip => DecoderBackend::Gzip(MultiGzDecoder::new(piece)),
            ContentCoding::Deflate => DecoderBackend::Deflate(Inflater::new(piece)),
            ContentCoding::Brotli => {
                DecoderBackend::Brotli(Box::new(DecompressorWriter::new(piece, 4096)))
            }
            ContentCoding::Zstd => {
                let mut decoder = Decoder::new().ok()?;
                let window = DParameter::WindowLogMax(MAX_ZSTD_WINDOW_LOG);
                decoder.set_parameter(window).ok()?;
                DecoderBackend::Zstd(Writer::new(piece, decoder))
            }
        })
    }

    fn output(&mut self) -> &mut DecodedChunk {
        match self {
            DecoderBackend::Gzip(library) => library.get_mut(),
            DecoderBackend::Deflate(library) => &mut library.output,
            DecoderBackend::Brotli(library) => library.get_mut(),
            DecoderBackend::Zstd(library) => library.writer_mut(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            DecoderBackend::Gzip(library) => library.write_all(bytes),
            DecoderBackend::Deflate(library) => library.write(bytes),
            DecoderBackend::Brotli(library) => library.write_all(bytes),
            DecoderBackend::Zstd(library) => library.write_all(bytes),
        }
    }

    /// Writes out the data that the library buffers. Otherwise a server-sent event in it would be delayed until the
    /// next event.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            DecoderBackend::Gzip(library) => library.flush(),
            DecoderBackend::Zstd(library) => library.flush(),
            DecoderBackend::Deflate(_) | DecoderBackend::Brotli(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            DecoderBackend::Gzip(library) => library.try_finish(),
            DecoderBackend::Deflate(library) if library.is_finished => Ok(()),
            DecoderBackend::Deflate(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            DecoderBackend::Brotli(library) => library.close(),
            DecoderBackend::Zstd(library) => library.finish(),
        }
    }
}

/// The decoder of one body.
pub(crate) struct Unpacker {
    /// The decoder of the coding that was applied after this one, and so is decoded before it.
    outer: Option<Box<Unpacker>>,
    library: DecoderBackend,
    /// Bytes decoded so far.
    unpacked: u64,
    limit: u64,
    /// Whether any encoded bytes have arrived.
    has_begun: bool,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unpacker of {} bytes", self.unpacked)
    }
}

impl Unpacker {
    /// Makes a decoder of at most `limit` decoded bytes; `None` if the body is not encoded, or a coding is unknown.
    pub(crate) fn new(codings: impl Into<ContentCodings>, limit: u64) -> Option<Box<Unpacker>> {
        let ContentCodings(codings) = codings.into();
        let applied = codings.into_iter().rev();
        let mut unpacker = None;
        for coding in applied.filter(|coding| *coding != ContentCoding::Identity) {
            unpacker = Some(Box::new(Unpacker {
                outer: unpacker,
                library: DecoderBackend::new(coding)?,
                unpacked: 0,
                limit,
                has_begun: false,
            }));
        }
        unpacker
    }

    /// Returns the number of bytes decoded so far.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        self.unpacked
    }

    /// Decodes a part of the body, and passes the output to `sink`.
    pub(crate) fn decode(
        &mut self,
        data: &[u8],
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), UnpackError> {
        let Some(mut outer) = self.outer.take() else {
            return self.decode_layer(data, sink);
        };
        let mut inner = Vec::new();
        let mut unpacked = Ok(());
        for step in data.chunks(INPUT_CHUNK_BYTES) {
            unpacked = outer.decode(step, &mut |piece| inner.extend_from_slice(piece));
            unpacked = unpacked.and_then(|()| self.decode_layer(&inner, sink));
            if unpacked.is_err() {
                break;
            }
            inner.clear();
        }
        self.outer = Some(outer);
        unpacked
    }

    /// Decodes a part of the data that this coding produced.
    fn decode_layer(
        &mut self,
        data: &[u8],
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), UnpackError> {
        self.has_begun |= !data.is_empty();
        for step in data.chunks(INPUT_CHUNK_BYTES) {
            let taken = self.library.write(step);
            self.pass_output(taken, sink)?;
        }
        let flushed = self.library.flush();
        self.pass_output(flushed, sink)
    }

    /// Passes the rest of the output to `sink`, and checks that the encoded data is complete.
    pub(crate) fn finish(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<(), UnpackError> {
        if let Some(mut outer) = self.outer.take() {
            let mut inner = Vec::new();
            outer.finish(&mut |piece| inner.extend_from_slice(piece))?;
            self.decode_layer(&inner, sink)?;
        }
        // A response without a body has no encoded data either (RFC 9110 §8.4.1), which is not an error.
        let ended = if self.has_begun {
            self.library.finish()
        } else {
            Ok(())
        };
        self.pass_output(ended, sink)
    }

    fn pass_output(
        &mut self,
        result: io::Result<()>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), UnpackError> {
        let piece = self.library.output();
        self.unpacked += piece.bytes.len() as u64;
        if piece.is_full || self.unpacked > self.limit {
            return Err(UnpackError::TooLarge(self.limit));
        }
        if !piece.bytes.is_empty() {
            sink(&piece.bytes);
            piece.bytes.clear();
            piece.bytes.shrink_to(MAX_KEPT_OUTPUT_BYTES);
        }
        result.map_err(UnpackError::Corrupt)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const TEXT: &[u8] = b"data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        flate2::read::GzEncoder::new(text, flate2::Compression::best())
            .read_to_end(&mut packed)
            .unwrap();
        packed
    }

    fn deflate(text: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        flate2::read::ZlibEncoder::new(text, flate2::Compression::best())
            .read_to_end(&mut packed)
            .unwrap();
        packed
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(text, 3).unwrap()
    }

    /// One uncompressed metablock, and an empty last one (RFC 7932 §9.2), with a window of 2^16.
    fn brotli(text: &[u8]) -> Vec<u8> {
        // WBITS 0 (1 bit), ISLAST 0, MNIBBLES 00 (4 nibbles), MLEN - 1 (16 bits), ISUNCOMPRESSED 1: 21 bits.
        let bits = (text.len() as u32 - 1) << 4 | 1 << 20;
        let mut packed = bits.to_le_bytes()[..3].to_vec();
        packed.extend_from_slice(text);
        // ISLAST 1, ISLASTEMPTY 1.
        packed.push(3);
        packed
    }

    #[test]
    fn content_codings_decode_in_reverse() {
        let of =
            |values: &[&str]| ContentCodings::parse(values.iter().map(|value| value.as_bytes()));
        assert_eq!(of(&["identity", ""]), ContentCodings::IDENTITY);
        assert_eq!(of(&["gzip"]), ContentCodings::from(ContentCoding::Gzip));
        assert!(!of(&["gzip, compress"]).are_supported());
        assert!(!of(&["gzip,gzip,gzip", "gzip,gzip,gzip"]).are_supported());
        let packed = brotli(&gzip(&deflate(TEXT)));
        for values in [
            &["deflate, x-gzip,br"][..],
            &["deflate", "identity, gzip", "br"],
        ] {
            let codings = of(values);
            assert!(codings.are_supported());
            for step in [1, 7, packed.len()] {
                let mut unpacker = Unpacker::new(codings, 1_000).unwrap();
                let mut out = Vec::new();
                for piece in packed.chunks(step) {
                    let mut sink = |data: &[u8]| out.extend_from_slice(data);
                    unpacker.decode(piece, &mut sink).unwrap();
                }
                unpacker
                    .finish(&mut |data| out.extend_from_slice(data))
                    .unwrap();
                assert_eq!(out, TEXT);
            }
        }
    }

    #[test]
    fn raw_deflate_is_accepted() {
        let mut packed = Vec::new();
        flate2::read::DeflateEncoder::new(TEXT, flate2::Compression::best())
            .read_to_end(&mut packed)
            .unwrap();
        for step in [1, 2, packed.len()] {
            assert_eq!(
                unpack(ContentCoding::Deflate, &packed, step, 1_000).unwrap(),
                TEXT
            );
        }
        let cut = unpack(
            ContentCoding::Deflate,
            &packed[..packed.len() - 1],
            9,
            1_000,
        );
        assert!(matches!(cut, Err(UnpackError::Corrupt(_))), "{cut:?}");
    }

    fn all() -> [(ContentCoding, Vec<u8>); 4] {
        [
            (ContentCoding::Gzip, gzip(TEXT)),
            (ContentCoding::Deflate, deflate(TEXT)),
            (ContentCoding::Brotli, brotli(TEXT)),
            (ContentCoding::Zstd, zstd(TEXT)),
        ]
    }

    fn unpack(
        coding: ContentCoding,
        packed: &[u8],
        step: usize,
        limit: u64,
    ) -> Result<Vec<u8>, UnpackError> {
        let mut unpacker = Unpacker::new(coding, limit).unwrap();
        let mut out = Vec::new();
        for piece in packed.chunks(step) {
            unpacker.decode(piece, &mut |data| out.extend_from_slice(data))?;
        }
        unpacker.finish(&mut |data| out.extend_from_slice(data))?;
        assert_eq!(unpacker.decoded_bytes(), out.len() as u64);
        Ok(out)
    }

    #[test]
    fn bodies_decompress_in_any_split() {
        for (coding, packed) in all() {
            for step in 1..=packed.len() {
                let out = unpack(coding, &packed, step, 1_000).unwrap();
                assert_eq!(out, TEXT, "{coding:?} by {step}");
            }
            assert_eq!(unpack(coding, b"", 1, 1_000).unwrap(), b"");
        }
    }

    #[test]
    fn truncated_or_oversized_bodies_are_errors() {
        for (coding, packed) in all() {
            for cut in 1..packed.len() {
                let cut_off = unpack(coding, &packed[..cut], 7, 1_000);
                assert!(
                    matches!(cut_off, Err(UnpackError::Corrupt(_))),
                    "{coding:?} {cut}"
                );
            }
            let limited = unpack(coding, &packed, 7, TEXT.len() as u64 - 1);
            assert!(
                matches!(limited, Err(UnpackError::TooLarge(_))),
                "{coding:?}"
            );
            let garbage = [0xff; 100];
            let garbage = unpack(coding, &garbage, 100, 1_000);
            assert!(
                matches!(garbage, Err(UnpackError::Corrupt(_))),
                "{coding:?}"
            );
        }
    }

    #[test]
    fn decompression_bomb_stops_at_limit() {
        let zeros = vec![0; 64 << 20];
        for (coding, packed) in [
            (ContentCoding::Gzip, gzip(&zeros)),
            (ContentCoding::Zstd, zstd(&zeros)),
        ] {
            assert!(packed.len() < zeros.len() / 900, "{coding:?}");
            let mut unpacker = Unpacker::new(coding, 20 << 20).unwrap();
            let mut most = 0;
            let ended = unpacker.decode(&packed, &mut |data| most = most.max(data.len()));
            assert!(matches!(ended, Err(UnpackError::TooLarge(_))), "{coding:?}");
            assert!(most <= MAX_CHUNK_BYTES);
        }
    }

    #[test]
    fn content_codings_parse_from_names() {
        for (name, coding) in [
            ("", ContentCoding::Identity),
            ("identity", ContentCoding::Identity),
            ("GZip", ContentCoding::Gzip),
            ("x-gzip", ContentCoding::Gzip),
            ("deflate", ContentCoding::Deflate),
            ("br", ContentCoding::Brotli),
            ("zstd", ContentCoding::Zstd),
            ("gzip, br", ContentCoding::Unknown),
            ("compress", ContentCoding::Unknown),
        ] {
            assert_eq!(ContentCoding::from_name(name.as_bytes()), coding, "{name}");
        }
    }
}
