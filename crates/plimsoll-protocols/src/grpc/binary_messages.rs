//! Reads the messages of `message_binary`, each with its origin.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use plimsoll_model::spec::{Problems, ResolveContext};

use super::binary::{BinarySource, BinarySpec};
use super::call::BinaryMessage;

const MESSAGE_BINARY_KEY: &str = "call.grpc.message_binary";

/// Reads the messages of all sources. Returns `None` after adding problems to `problems`.
pub(super) fn read_binary_messages(
    problems: &mut Problems,
    spec: &BinarySpec,
    surroundings: &dyn ResolveContext,
) -> Option<Vec<BinaryMessage>> {
    let mut messages = Vec::new();
    let mut all_good = true;
    for (i, source) in spec.0.iter().enumerate() {
        let found = read_source(source, i, surroundings).and_then(|(name, bytes)| match source {
            BinarySource::File(_) | BinarySource::Base64(_) => Ok(vec![BinaryMessage {
                bytes,
                source: name,
            }]),
            BinarySource::Delimited(_) => split_delimited(&name, &bytes),
        });
        match problems.ok_or_report(MESSAGE_BINARY_KEY, found) {
            Some(mut found) => messages.append(&mut found),
            None => all_good = false,
        }
    }
    if all_good && messages.is_empty() {
        problems.add(MESSAGE_BINARY_KEY, "no message: name at least one");
        return None;
    }
    all_good.then_some(messages)
}

/// Returns the name and the bytes of a source.
fn read_source(
    source: &BinarySource,
    place: usize,
    surroundings: &dyn ResolveContext,
) -> Result<(String, Vec<u8>), String> {
    match source {
        BinarySource::File(path) | BinarySource::Delimited(path) => {
            let name = path.display().to_string();
            match surroundings.read_bytes(path) {
                Ok(bytes) => Ok((name, bytes)),
                Err(e) => Err(format!("can't read {name}: {e}")),
            }
        }
        BinarySource::Base64(text) => {
            let name = format!("message {}", place + 1);
            match BASE64.decode(text) {
                Ok(bytes) => Ok((name, bytes)),
                Err(e) => Err(format!("{name}: not base64: {e}")),
            }
        }
    }
}

/// Splits length-delimited messages (each prefixed with its length as a varint). `name` is used in errors.
///
/// # Errors
/// Returns an error if a length is invalid or exceeds the remaining bytes.
pub fn split_delimited(name: &str, all: &[u8]) -> Result<Vec<BinaryMessage>, String> {
    let mut messages = Vec::new();
    let mut rest = all;
    while !rest.is_empty() {
        let source = format!("{name}, message {}", messages.len() + 1);
        let at = all.len() - rest.len();
        let Some((length, behind)) = read_varint(rest) else {
            return Err(format!(
                "{source}: no length at byte {at}: write the length of each message as a varint before it"
            ));
        };
        let message = usize::try_from(length).ok().and_then(|n| behind.get(..n));
        let Some(bytes) = message else {
            return Err(format!(
                "{source}: its length at byte {at} is {length}, but {} bytes follow",
                behind.len()
            ));
        };
        rest = &behind[bytes.len()..];
        messages.push(BinaryMessage {
            bytes: bytes.to_vec(),
            source,
        });
    }
    Ok(messages)
}

/// Decodes a varint and returns it with the bytes after it.
fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimited_messages_are_split_by_length() {
        let mut file = vec![1, 7, 0, 0x80, 0x01];
        file.extend([9; 128]);
        let bytes = |all: &[u8]| -> Result<Vec<Vec<u8>>, String> {
            let messages = split_delimited("f", all)?;
            Ok(messages.into_iter().map(|message| message.bytes).collect())
        };
        assert_eq!(bytes(&file), Ok(vec![vec![7], vec![], vec![9; 128]]));
        assert_eq!(bytes(&[]), Ok(vec![]));
        // Wherever the file is cut, the error names the offset.
        for end in 0..file.len() {
            let whole = [0, 2, 3].contains(&end);
            assert_eq!(bytes(&file[..end]).is_ok(), whole, "{end}");
        }
        let problem = bytes(&file[..50]).unwrap_err();
        assert_eq!(
            problem,
            "f, message 3: its length at byte 3 is 128, but 45 bytes follow"
        );
        let problem = bytes(&[0xff; 12]).unwrap_err();
        assert!(
            problem.starts_with("f, message 1: no length at byte 0"),
            "{problem}"
        );
        let longest = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(read_varint(&longest), Some((u64::MAX, &[][..])));
        assert!(bytes(&longest).is_err());
    }
}
