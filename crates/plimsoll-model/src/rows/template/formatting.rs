//! Formats numbers and UUIDs.

/// Appends `number` with this many decimals.
pub(super) fn write_number(number: i64, digits: u8, out: &mut Vec<u8>) {
    let mut buffer = itoa::Buffer::new();
    if digits == 0 {
        out.extend_from_slice(buffer.format(number).as_bytes());
        return;
    }
    let scale = 10u64.pow(u32::from(digits));
    let magnitude = number.unsigned_abs();
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(buffer.format(magnitude / scale).as_bytes());
    out.push(b'.');
    let fraction = buffer.format(magnitude % scale).as_bytes();
    out.extend(std::iter::repeat_n(
        b'0',
        usize::from(digits) - fraction.len(),
    ));
    out.extend_from_slice(fraction);
}

/// Formats a UUID like `f81d4fae-7dec-4d0e-a765-00a0c91e6bf6`.
pub(super) fn hyphenate_uuid(uuid: [u8; 16]) -> [u8; 36] {
    const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
    const BYTE_POSITIONS: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    let mut text = [b'-'; 36];
    for (byte, at) in uuid.into_iter().zip(BYTE_POSITIONS) {
        text[at] = HEX_DIGITS[usize::from(byte >> 4)];
        text[at + 1] = HEX_DIGITS[usize::from(byte & 15)];
    }
    text
}
