//! Encodes and decodes times as text: an HdrHistogram in format V2, compressed, in base64. The text may come from an
//! untrusted source, so memory is bounded, and every field is checked.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::{Decompress, FlushDecompress, Status};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

use crate::metrics::times::PackedTimes;
use crate::records::record::TimeHistogram;

/// The largest count in a line. Every JSON reader represents it exactly.
pub(super) const MAX_COUNT: u64 = 1 << 53;

/// Maximum bytes of all histograms of a line, decompressed. Those that Plimsoll writes rarely exceed 20,000.
const MAX_HISTOGRAM_BYTES: usize = 8 << 20;

/// The first bytes of a compressed and of an uncompressed histogram, which HdrHistogram calls cookies.
const COMPRESSED_COOKIE: u32 = 0x1c84_9314;
const UNCOMPRESSED_COOKIE: u32 = 0x1c84_9313;

/// Length of an uncompressed histogram's header, in bytes.
const HEADER_BYTES: usize = 40;

/// Encodes `histogram` as text.
pub(super) fn encode(histogram: &Histogram<u64>, serializer: &mut V2DeflateSerializer) -> String {
    let mut bytes = Vec::new();
    serializer
        .serialize(histogram, &mut bytes)
        .expect("serializing to memory fails only for counts over 2^63");
    BASE64.encode(bytes)
}

/// A reader of the histograms of one line.
pub(super) struct TimesReader {
    inflate: Decompress,
    /// The text without base64.
    packed: Vec<u8>,
    /// The decompressed histogram.
    plain: Vec<u8>,
    /// Bytes that the remaining histograms of the line may take.
    bytes_left: usize,
    /// Number of texts that were decoded.
    #[cfg(test)]
    decoded: usize,
}

impl TimesReader {
    pub(super) fn new() -> TimesReader {
        TimesReader {
            inflate: Decompress::new(true),
            packed: Vec::new(),
            plain: Vec::new(),
            bytes_left: MAX_HISTOGRAM_BYTES,
            #[cfg(test)]
            decoded: 0,
        }
    }

    /// Decodes the histograms of a record, given as pairs of key and text, and puts each where `histogram_mut` says.
    ///
    /// Equal texts are decoded once: a closed loop's response time, service time and time to first byte are equal.
    ///
    /// # Errors
    /// When a key is not that of a histogram of `owner`, or a text can't be decoded.
    pub(super) fn decode_all<'t, R>(
        &mut self,
        texts: impl Iterator<Item = (&'t str, &'t str)>,
        owner: &str,
        record: &mut R,
        histogram_mut: impl for<'r> Fn(&'r mut R, &str) -> Option<&'r mut TimeHistogram>,
    ) -> Result<(), String> {
        let unknown = |key: &str| format!("{key:?} is not the key of {owner}'s histogram");
        let mut known: Vec<(&str, &str, usize)> = Vec::new();
        for (key, text) in texts {
            let in_histogram = |e: String| format!("histogram {key:?}: {e}");
            let times = match known.iter().find(|(_, decoded, _)| *decoded == text) {
                Some(&(earlier, _, bytes)) => {
                    // A copy takes as much memory.
                    self.charge(bytes).map_err(in_histogram)?;
                    let times = histogram_mut(record, earlier).ok_or_else(|| unknown(earlier))?;
                    times.clone()
                }
                None => {
                    let times = self.decode(text).map_err(in_histogram)?;
                    known.push((key, text, self.plain.len()));
                    times
                }
            };
            *histogram_mut(record, key).ok_or_else(|| unknown(key))? = times;
        }
        Ok(())
    }

    /// Decodes the times in `text`. The histogram may have other bounds and precision than Plimsoll's.
    fn decode(&mut self, text: &str) -> Result<TimeHistogram, String> {
        #[cfg(test)]
        {
            self.decoded += 1;
        }
        self.decompress(text)?;
        self.charge(self.plain.len())?;
        decode_counts(&self.plain).map_err(|e| invalid_histogram(&e))
    }

    /// Reduces the bytes that the remaining histograms of the line may take.
    fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes_left = (self.bytes_left)
            .checked_sub(bytes)
            .ok_or_else(too_large_error)?;
        Ok(())
    }

    /// Decodes `text` to the bytes of an uncompressed histogram, in `plain`.
    fn decompress(&mut self, text: &str) -> Result<(), String> {
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        BASE64
            .decode_vec(text, &mut packed)
            .map_err(|e| format!("not base64: {e}"))?;
        let (cookie, rest) = packed
            .split_first_chunk()
            .ok_or_else(|| invalid_histogram("cut off"))?;
        match u32::from_be_bytes(*cookie) {
            UNCOMPRESSED_COOKIE => {
                self.plain.clear();
                self.plain.extend_from_slice(&packed);
            }
            COMPRESSED_COOKIE => {
                let (_length, compressed) = rest
                    .split_first_chunk::<4>()
                    .ok_or_else(|| invalid_histogram("cut off"))?;
                self.inflate(compressed)
                    .map_err(|e| invalid_histogram(&e))?;
            }
            _ => return Err(invalid_histogram("it begins with the wrong number")),
        }
        self.packed = packed;
        Ok(())
    }

    /// Decompresses `compressed` into `plain`.
    fn inflate(&mut self, compressed: &[u8]) -> Result<(), String> {
        self.inflate.reset(true);
        self.plain.clear();
        self.plain.reserve(16 << 10);
        loop {
            if self.plain.len() == self.plain.capacity() {
                if self.plain.len() > self.bytes_left {
                    return Err(too_large_error());
                }
                self.plain.reserve(self.plain.len() * 3);
            }
            let before = (self.inflate.total_in(), self.inflate.total_out());
            let read = usize::try_from(before.0).unwrap_or(usize::MAX);
            let rest = compressed.get(read..).unwrap_or_default();
            let status = self
                .inflate
                .decompress_vec(rest, &mut self.plain, FlushDecompress::None);
            if status.map_err(|e| e.to_string())? == Status::StreamEnd {
                return Ok(());
            }
            if (self.inflate.total_in(), self.inflate.total_out()) == before {
                return Err("cut off".to_owned());
            }
        }
    }
}

fn invalid_histogram(problem: &str) -> String {
    format!("not an HdrHistogram V2: {problem}")
}

fn too_large_error() -> String {
    format!(
        "the line's histograms have more than {} MiB",
        MAX_HISTOGRAM_BYTES >> 20
    )
}

/// The bucket layout of a histogram.
struct BucketLayout {
    /// Number of low-order bits below the histogram's resolution.
    unit_bits: u32,
    /// Half of the number of buckets of equal width, as the exponent of 2.
    half_bits: u32,
}

impl BucketLayout {
    fn new(digits: u32, lowest: u64) -> Option<BucketLayout> {
        let exact = 10_u64.checked_pow(digits).filter(|_| digits <= 5)? * 2;
        Some(BucketLayout {
            unit_bits: lowest.checked_ilog2()?,
            half_bits: (exact.next_power_of_two() / 2).ilog2(),
        })
    }

    /// Returns the highest value that is counted at `index`.
    #[inline]
    fn highest_value(&self, index: u64) -> Option<u64> {
        let half = 1_u64 << self.half_bits;
        let row = index >> self.half_bits;
        let column = index & (half - 1);
        let (column, shift) = match row {
            0 => (column, 0),
            _ => (column + half, u32::try_from(row - 1).ok()?),
        };
        let shift = shift.checked_add(self.unit_bits)?;
        let next = (column + 1)
            .checked_shl(shift)
            .filter(|next| next >> shift == column + 1);
        // The last bucket ends at the largest integer, so the addition may overflow.
        next.map(|next| next - 1)
    }
}

/// Reads the counts of an uncompressed histogram.
fn decode_counts(bytes: &[u8]) -> Result<TimeHistogram, String> {
    let head: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or("cut off")?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    let (length, offset, digits, lowest) = (word(4), word(8), word(12), long(16));
    if word(0) != UNCOMPRESSED_COOKIE {
        return Err("it begins with the wrong number".to_owned());
    }
    if offset != 0 || f64::from_bits(long(32)) != 1.0 {
        return Err("it is shifted or scaled".to_owned());
    }
    let layout = BucketLayout::new(digits, lowest)
        .ok_or_else(|| format!("{digits} digits from {lowest} on are not valid bounds"))?;
    let mut rest = usize::try_from(length)
        .ok()
        .and_then(|length| bytes[HEADER_BYTES..].get(..length))
        .ok_or("cut off")?;
    let mut index = 0_u64;
    let mut total = 0_u64;
    let mut found = PackedTimes::default();
    while !rest.is_empty() {
        let number = read_zigzag(&mut rest).ok_or("cut off")?;
        // A negative number encodes a sequence of empty buckets.
        let passed = match u64::try_from(number) {
            Err(_) => number.unsigned_abs(),
            Ok(0) => 1,
            Ok(count) => {
                total = total
                    .checked_add(count)
                    .filter(|total| *total <= MAX_COUNT)
                    .ok_or("it counts more than 2^53 times")?;
                let value = layout
                    .highest_value(index)
                    .ok_or("it has too many buckets")?;
                found.push(value, count);
                1
            }
        };
        index = index.checked_add(passed).ok_or("it has too many buckets")?;
    }
    Ok(found.finish())
}

/// Reads the next number (ZigZag LEB128): seven bits per byte, the lowest first, and at most nine bytes, of which the
/// ninth has eight bits. The lowest bit of the number is the sign.
fn read_zigzag(bytes: &mut &[u8]) -> Option<i64> {
    let mut zigzag = 0_u64;
    for i in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if i == 8 {
            zigzag |= u64::from(*byte) << 56;
            break;
        }
        zigzag |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::V2Serializer;

    use super::*;

    fn decode(text: &str) -> Result<TimeHistogram, String> {
        TimesReader::new().decode(text)
    }

    /// A histogram with these bounds that contains times from its lowest to its highest value.
    fn histogram(lowest: u64, highest: u64, digits: u8) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(lowest, highest, digits).unwrap();
        let mut value = 0;
        while value <= highest {
            histogram.record_n(value, 1 + value % 300).unwrap();
            value += value / 7 + lowest;
        }
        histogram
    }

    #[test]
    fn histograms_with_any_bounds_decode() {
        const HOUR: u64 = 3_600_000_000_000;
        for (lowest, highest, digits) in [
            (1, HOUR, 3),
            (1, HOUR, 2),
            (1, 100, 0),
            (1, 60_000_000, 5),
            (1_000, HOUR, 3),
            (3, 1 << 40, 4),
        ] {
            let histogram = histogram(lowest, highest, digits);
            let mut expected = TimeHistogram::default();
            for bucket in histogram.iter_recorded() {
                expected.record_n(bucket.value_iterated_to(), bucket.count_at_value());
            }
            let compressed = encode(&histogram, &mut V2DeflateSerializer::new());
            assert_eq!(decode(&compressed), Ok(expected.clone()), "{digits}");
            let mut plain = Vec::new();
            V2Serializer::new()
                .serialize(&histogram, &mut plain)
                .unwrap();
            assert_eq!(decode(&BASE64.encode(plain)), Ok(expected), "{digits}");
        }
    }

    #[test]
    fn equal_texts_of_record_are_decoded_once() {
        let [one, other] = [1 << 20, 1 << 30]
            .map(|highest| encode(&histogram(1, highest, 3), &mut V2DeflateSerializer::new()));
        let texts = [("0", &one), ("1", &other), ("2", &one), ("3", &one)];
        let texts = texts.map(|(key, text)| (key, text.as_str()));
        let mut all: Vec<TimeHistogram> = vec![TimeHistogram::default(); 4];
        let mut reader = TimesReader::new();
        let decode_all = |reader: &mut TimesReader, all: &mut Vec<TimeHistogram>| {
            reader.decode_all(texts.into_iter(), "a stage", all, |all, key| {
                all.get_mut(key.parse::<usize>().ok()?)
            })
        };
        assert_eq!(decode_all(&mut reader, &mut all), Ok(()));
        assert_eq!(reader.decoded, 2);
        let expected = [&one, &other, &one, &one].map(|text| decode(text).unwrap());
        assert_eq!(all, expected);
        // Copies count towards the limit of the line as well.
        let mut single = TimesReader::new();
        for (_, text) in texts {
            single.decode(text).unwrap();
        }
        assert_eq!(reader.bytes_left, single.bytes_left);
        all.pop();
        let error = decode_all(&mut reader, &mut all).unwrap_err();
        assert_eq!(error, "\"3\" is not the key of a stage's histogram");
    }

    #[test]
    fn truncated_or_corrupt_histograms_never_panic() {
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(&histogram(1, 1 << 30, 3), &mut bytes)
            .unwrap();
        for end in 0..bytes.len() {
            assert!(
                decode(&BASE64.encode(&bytes[..end])).is_err(),
                "cut at {end}"
            );
        }
        for at in 0..bytes.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut altered = bytes.clone();
                altered[at] ^= bits;
                let _either = decode(&BASE64.encode(altered));
            }
        }
    }

    #[test]
    fn counts_that_overflow_are_refused() {
        let mut histogram = histogram(1, 1 << 30, 3);
        histogram.record_n(5, 1 << 62).unwrap();
        let text = encode(&histogram, &mut V2DeflateSerializer::new());
        assert!(decode(&text).unwrap_err().contains("2^53"));
    }

    #[test]
    fn decompression_bombs_are_rejected() {
        use flate2::{Compression, write::ZlibEncoder};
        use std::io::Write as _;
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&vec![0; MAX_HISTOGRAM_BYTES + 1]).unwrap();
        let mut bytes = COMPRESSED_COOKIE.to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(packed.finish().unwrap());
        assert!(bytes.len() < 20_000);
        assert!(decode(&BASE64.encode(bytes)).unwrap_err().contains("MiB"));
        // Many small histograms don't circumvent the limit.
        let one = encode(
            &histogram(1, 60_000_000, 5),
            &mut V2DeflateSerializer::new(),
        );
        let mut reader = TimesReader::new();
        let refused = (0..100_000).find_map(|_| reader.decode(&one).err());
        assert!(refused.unwrap().contains("MiB"));
    }
}
