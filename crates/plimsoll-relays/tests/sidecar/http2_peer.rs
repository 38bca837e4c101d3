//! A minimal HTTP/2 endpoint for tests: sends frames and returns those that it receives.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use plimsoll_wire::hpack::{Decoder, Encoder};
use plimsoll_wire::http2::{Http2Frame, PREFACE, flags, kind, split_frame, write};

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Http2Event {
    Headers {
        stream: u32,
        fields: Vec<(String, String)>,
        end: bool,
    },
    Data {
        stream: u32,
        data: Vec<u8>,
        end: bool,
    },
    Reset {
        stream: u32,
        code: u32,
    },
    GoAway {
        last_stream: u32,
        code: u32,
    },
    Ping,
    PingAck,
    /// The connection is closed.
    End,
}

impl Http2Event {
    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let Http2Event::Headers { fields, .. } = self else {
            return None;
        };
        let found = fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn stream(&self) -> u32 {
        match self {
            Http2Event::Headers { stream, .. }
            | Http2Event::Data { stream, .. }
            | Http2Event::Reset { stream, .. } => *stream,
            _ => 0,
        }
    }
}

pub(crate) struct Http2Peer {
    pub(crate) stream: TcpStream,
    bytes: Vec<u8>,
    decoder: Decoder,
}

impl Http2Peer {
    /// Sends the preface with `settings`.
    pub(crate) fn new(mut stream: TcpStream, client: bool, settings: &[(u16, u32)]) -> Http2Peer {
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        let mut greeting = Vec::new();
        if client {
            greeting.extend_from_slice(PREFACE);
        }
        write::settings(&mut greeting, settings);
        stream.write_all(&greeting).unwrap();
        let mut bytes = Vec::new();
        if !client {
            let mut preface = [0; 24];
            stream.read_exact(&mut preface).unwrap();
            assert_eq!(&preface, PREFACE);
            bytes.clear();
        }
        Http2Peer {
            stream,
            bytes,
            decoder: Decoder::new(4096, 1 << 16),
        }
    }

    pub(crate) fn send_frames(&mut self, frames: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        frames(&mut out);
        self.stream.write_all(&out).unwrap();
    }

    /// Closes the connection, whatever is unread.
    pub(crate) fn leave(&self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Like [`Http2Peer::send_frames`], but the peer may have closed the connection.
    pub(crate) fn try_send(&mut self, frames: &[u8]) {
        let _ = self.stream.write_all(frames);
    }

    pub(crate) fn headers(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) {
        let block = Encoder::encode_plain(fields.iter().copied());
        self.send_frames(|out| write::header_block(out, stream, &block, write::EndStream(end)));
    }

    /// Sends the header fields of a gRPC call.
    pub(crate) fn call(&mut self, stream: u32, more: &[(&str, &str)], end: bool) {
        let mut fields = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/a.B/C"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        fields.extend_from_slice(more);
        self.headers(stream, &fields, end);
    }

    pub(crate) fn data(&mut self, stream: u32, data: &[u8], end: bool) {
        self.send_frames(|out| write::data(out, stream, data, write::EndStream(end)));
    }

    /// Returns the next frame of a call, or PING, which is answered.
    pub(crate) fn next(&mut self) -> Http2Event {
        loop {
            let mut input = &self.bytes[..];
            let Some((head, payload)) = split_frame(&mut input, 1 << 14).unwrap() else {
                let mut buffer = [0; 65_536];
                match self.stream.read(&mut buffer) {
                    Ok(read @ 1..) => self.bytes.extend_from_slice(&buffer[..read]),
                    Ok(_) => return Http2Event::End,
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {
                        return Http2Event::End;
                    }
                    Err(e) => panic!("nothing came: {e}"),
                }
                continue;
            };
            let left = input.len();
            let stream = head.stream();
            let mut answer = Vec::new();
            let came = match Http2Frame::parse(head, payload).unwrap() {
                Http2Frame::Headers {
                    fragment,
                    end_stream,
                    end_headers,
                } => {
                    assert!(end_headers);
                    let mut fields = Vec::new();
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    self.decoder
                        .decode(fragment, |f| fields.push((text(f.name), text(f.value))))
                        .unwrap();
                    Some(Http2Event::Headers {
                        stream,
                        fields,
                        end: end_stream,
                    })
                }
                Http2Frame::Data { data, end_stream } => Some(Http2Event::Data {
                    stream,
                    data: data.to_vec(),
                    end: end_stream,
                }),
                Http2Frame::ResetStream { code } => Some(Http2Event::Reset {
                    stream,
                    code: code.0,
                }),
                Http2Frame::GoAway {
                    last_stream, code, ..
                } => Some(Http2Event::GoAway {
                    last_stream,
                    code: code.0,
                }),
                Http2Frame::Settings(_) => {
                    write::settings_ack(&mut answer);
                    None
                }
                Http2Frame::Ping { data } => {
                    write::frame_header(&mut answer, 8, kind::PING, flags::ACK, 0);
                    answer.extend_from_slice(&data);
                    Some(Http2Event::Ping)
                }
                Http2Frame::PingAck { .. } => Some(Http2Event::PingAck),
                _ => None,
            };
            self.bytes.drain(..self.bytes.len() - left);
            if !answer.is_empty() {
                self.stream.write_all(&answer).unwrap();
            }
            if let Some(came) = came {
                return came;
            }
        }
    }
}
