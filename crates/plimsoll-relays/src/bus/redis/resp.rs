//! The Redis protocol (RESP2): commands out, replies in, without copying payloads.

use bytes::{Buf, Bytes, BytesMut};

/// The longest string a reply may hold. A session's frame is far smaller.
const MOST_STRING: usize = 64 << 20;
const MOST_ELEMENTS: usize = 1 << 20;
const MOST_DEPTH: u8 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Status(Bytes),
    Error(Bytes),
    Number(i64),
    Text(Bytes),
    Nothing,
    List(Vec<Reply>),
}

/// The server sent what is not RESP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotResp;

/// Appends one command.
pub(super) fn put_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    put_number(out, b'*', arguments.len());
    for argument in arguments {
        put_number(out, b'$', argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

fn put_number(out: &mut Vec<u8>, kind: u8, mut number: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// Takes one reply off the front of `input`; `None` when it is not all there.
pub(super) fn take_reply(input: &mut BytesMut) -> Result<Option<Reply>, NotResp> {
    let Some(length) = measure(input, 0)? else {
        return Ok(None);
    };
    let mut whole = input.split_to(length).freeze();
    Ok(Some(decode(&mut whole)))
}

/// Bytes of the reply at the front of `input`.
fn measure(input: &[u8], depth: u8) -> Result<Option<usize>, NotResp> {
    let Some(line) = memchr(input) else {
        // A line that never ends is not a reply.
        return if input.len() > 64 * 1024 {
            Err(NotResp)
        } else {
            Ok(None)
        };
    };
    let head = line + 2;
    match input[0] {
        b'+' | b'-' => Ok(Some(head)),
        b':' => number(&input[1..line]).map(|_| Some(head)),
        b'$' => match number(&input[1..line])? {
            -1 => Ok(Some(head)),
            length => {
                let length = usize::try_from(length).map_err(|_| NotResp)?;
                if length > MOST_STRING {
                    return Err(NotResp);
                }
                let end = head + length + 2;
                match input.get(end - 2..end) {
                    None => Ok(None),
                    Some(b"\r\n") => Ok(Some(end)),
                    Some(_) => Err(NotResp),
                }
            }
        },
        b'*' => {
            let elements = number(&input[1..line])?;
            if elements > MOST_ELEMENTS as i64 || elements < -1 || depth >= MOST_DEPTH {
                return Err(NotResp);
            }
            let mut end = head;
            for _ in 0..elements {
                match measure(&input[end..], depth + 1)? {
                    None => return Ok(None),
                    Some(length) => end += length,
                }
            }
            Ok(Some(end))
        }
        _ => Err(NotResp),
    }
}

/// Where the first line's `\r\n` begins.
fn memchr(input: &[u8]) -> Option<usize> {
    input.windows(2).position(|pair| pair == b"\r\n")
}

fn number(digits: &[u8]) -> Result<i64, NotResp> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(NotResp)
}

/// Decodes what [`measure`] has found whole.
fn decode(input: &mut Bytes) -> Reply {
    let line = memchr(input).unwrap_or(input.len().saturating_sub(2));
    let head = input.split_to(line);
    input.advance(2.min(input.len()));
    let text = head.slice(1..);
    let value = number(&text).unwrap_or(-1);
    match head[0] {
        b'+' => Reply::Status(text),
        b'-' => Reply::Error(text),
        b':' => Reply::Number(value),
        b'$' if value < 0 => Reply::Nothing,
        b'$' => {
            let text = input.split_to(value as usize);
            input.advance(2);
            Reply::Text(text)
        }
        _ if value < 0 => Reply::Nothing,
        _ => Reply::List((0..value).map(|_| decode(input)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Reply {
        Reply::Text(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn replies_are_read_in_every_split() {
        let bytes = b"+OK\r\n-ERR no\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*3\r\n$7\r\nmessage\r\n*0\r\n:1\r\n";
        let expected = [
            Reply::Status(Bytes::from_static(b"OK")),
            Reply::Error(Bytes::from_static(b"ERR no")),
            Reply::Number(-12),
            text("a\r\n"),
            Reply::Nothing,
            Reply::Nothing,
            Reply::List(vec![text("message"), Reply::List(vec![]), Reply::Number(1)]),
        ];
        for piece in 1..=bytes.len() {
            let mut input = BytesMut::new();
            let mut replies = Vec::new();
            for part in bytes.chunks(piece) {
                input.extend_from_slice(part);
                while let Some(reply) = take_reply(&mut input).unwrap() {
                    replies.push(reply);
                }
            }
            assert_eq!(replies, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"$5\r\nhelloXX",
            b"$-2\r\n",
            b":x\r\n",
            b"*99999999\r\n",
            b"$99999999999\r\n",
            &b"*1\r\n".repeat(20),
        ] {
            let refused = take_reply(&mut BytesMut::from(bytes));
            assert_eq!(
                refused,
                Err(NotResp),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn commands_are_lists_of_strings() {
        let mut out = Vec::new();
        put_command(&mut out, &[b"PUBLISH", b"", b"0123456789"]);
        assert_eq!(
            out,
            b"*3\r\n$7\r\nPUBLISH\r\n$0\r\n\r\n$10\r\n0123456789\r\n"
        );
    }
}
