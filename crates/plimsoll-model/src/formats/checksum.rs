//! Checksums of files, by which a saved plan recognises those that have changed.

use flate2::Crc;

/// Returns the checksum of a file's content (CRC-32), in hexadecimal digits.
pub fn file_checksum(content: &[u8]) -> String {
    let mut crc = Crc::new();
    crc.update(content);
    format!("{:08x}", crc.sum())
}
