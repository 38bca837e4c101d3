//! gRPC over HTTP/2 (RFC 9113, RFC 7541), done wrong.
//!
//! Long because it is one list.

use std::io;

use plimsoll_model::Outcome as O;
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{End, ErrorCode, flags, kind, setting, write};

use super::{Behaviour, Peer};

const PREFACE: usize = 24;

/// `score.ScoreResponse { score: 1.0 }` with gRPC's prefix.
const MESSAGE: &[u8] = &[0, 0, 0, 0, 9, 9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];

/// Reads up to the end of the first request, and returns its stream. The client's SETTINGS are
/// acknowledged.
fn request(peer: &mut Peer) -> io::Result<u32> {
    greet(peer)?;
    whole_request(peer)
}

/// The client's preface, and SETTINGS of ours.
fn greet(peer: &mut Peer) -> io::Result<()> {
    peer.take(PREFACE)?;
    send_frames(peer, |out| write::settings(out, &[]))
}

/// Reads frames up to one with END_STREAM.
fn whole_request(peer: &mut Peer) -> io::Result<u32> {
    loop {
        let head = peer.take(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        peer.take(length)?;
        let (kind, bits) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if kind == kind::SETTINGS && bits & flags::ACK == 0 {
            send_frames(peer, write::settings_ack)?;
        }
        if matches!(kind, kind::HEADERS | kind::DATA) && bits & flags::END_STREAM != 0 {
            return Ok(stream);
        }
    }
}

fn send_frames(peer: &mut Peer, frames: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
    let mut out = Vec::new();
    frames(&mut out);
    peer.send(&out)
}

fn headers(out: &mut Vec<u8>, stream: u32, fields: &[(&str, &str)], end: bool) {
    write::header_block(
        out,
        stream,
        &Encoder::encode_plain(fields.iter().copied()),
        End(end),
    );
}

const HEAD: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

fn head(out: &mut Vec<u8>, stream: u32) {
    headers(out, stream, &HEAD, false);
}

fn trailers(out: &mut Vec<u8>, stream: u32) {
    headers(out, stream, &[("grpc-status", "0")], true);
}

fn answer(out: &mut Vec<u8>, stream: u32) {
    head(out, stream);
    write::data(out, stream, MESSAGE, End(false));
    trailers(out, stream);
}

/// A good answer; then whatever else the client asks on the connection.
fn answers(peer: &mut Peer, mut stream: u32) -> io::Result<()> {
    loop {
        send_frames(peer, |out| answer(out, stream))?;
        stream = whole_request(peer)?;
    }
}

/// After a whole request these frames, and then nothing more.
fn instead(peer: &mut Peer, frames: impl FnOnce(&mut Vec<u8>, u32)) -> io::Result<()> {
    let stream = request(peer)?;
    send_frames(peer, |out| frames(out, stream))?;
    peer.wait()
}

/// An answer that is trailers alone.
fn status(peer: &mut Peer, fields: &[(&str, &str)]) -> io::Result<()> {
    instead(peer, |out, stream| {
        let all: Vec<_> = HEAD.iter().chain(fields).copied().collect();
        headers(out, stream, &all, true);
    })
}

/// An answer whose message has these bytes, prefix included.
fn message(peer: &mut Peer, more: &[(&str, &str)], bytes: &[u8]) -> io::Result<()> {
    instead(peer, |out, stream| {
        let all: Vec<_> = HEAD.iter().chain(more).copied().collect();
        headers(out, stream, &all, false);
        for piece in bytes.chunks(16_384) {
            write::data(out, stream, piece, End(false));
        }
        trailers(out, stream);
    })
}

/// A HEADERS frame with this block as it is.
fn block(peer: &mut Peer, block: &[u8]) -> io::Result<()> {
    instead(peer, |out, stream| {
        write::header_block(out, stream, block, End(false));
    })
}

/// A frame of this kind, as it is.
fn frame(out: &mut Vec<u8>, kind: u8, bits: u8, stream: u32, payload: &[u8]) {
    write::head(out, payload.len(), kind, bits, stream);
    out.extend_from_slice(payload);
}

const STATUS: O = O::coded("HTTP_STATUS");

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    // The connection.
    Behaviour::new(
        "h2-close-at-once",
        "closes before a byte",
        O::ConnectionClosed,
        |_| Ok(()),
    ),
    Behaviour::new("h2-reset-at-once", "RST before a byte", O::Reset, |p| {
        p.reset()
    }),
    Behaviour::new(
        "h2-silent",
        "takes the connection and never says a word",
        O::ConnectTimeout,
        |p| p.wait(),
    ),
    Behaviour::new(
        "h2-deaf",
        "takes the connection, and neither reads nor writes",
        O::ConnectTimeout,
        |p| p.ignore(),
    ),
    Behaviour::new(
        "h2-http1",
        "answers as an HTTP/1.1 server does",
        O::coded("NOT_HTTP2"),
        |p| {
            p.take(PREFACE)?;
            p.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        },
    ),
    Behaviour::new(
        "h2-tls-alert",
        "a TLS alert in plaintext",
        O::coded("NOT_HTTP2"),
        |p| {
            p.take(PREFACE)?;
            p.send(&[21, 3, 1, 0, 2, 2, 70])?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-garbage",
        "bytes that are no frame",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            p.send(&[0xa5; 4096])?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-close-after-settings",
        "SETTINGS, and closes",
        O::ConnectionClosed,
        greet,
    ),
    Behaviour::new(
        "h2-reset-after-settings",
        "SETTINGS, and RST",
        O::Reset,
        |p| {
            greet(p)?;
            whole_request(p)?;
            p.reset()
        },
    ),
    Behaviour::new(
        "h2-half-close",
        "ends its half after the request, and reads on",
        O::ConnectionClosed,
        |p| {
            request(p)?;
            p.half_close()
        },
    ),
    Behaviour::new(
        "h2-no-answer",
        "takes the request and never answers",
        O::DeadlineExceeded,
        |p| {
            request(p)?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-drip",
        "a good answer, a byte a millisecond",
        O::Ok,
        |p| {
            let stream = request(p)?;
            let mut out = Vec::new();
            answer(&mut out, stream);
            p.drip(&out)?;
            p.wait()
        },
    ),
    // Settings.
    Behaviour::new(
        "h2-no-settings",
        "the first frame is not SETTINGS (RFC 9113 §3.4)",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| frame(out, kind::PING, 0, 0, b"pingping"))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-window",
        "INITIAL_WINDOW_SIZE of 2^31 (§6.5.2)",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| {
                write::settings(out, &[(setting::INITIAL_WINDOW_SIZE, 1 << 31)])
            })?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-frame-size",
        "MAX_FRAME_SIZE of 100 (§6.5.2)",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| {
                write::settings(out, &[(setting::MAX_FRAME_SIZE, 100)])
            })?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-length",
        "SETTINGS of 5 bytes (§6.5)",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| frame(out, kind::SETTINGS, 0, 0, &[0; 5]))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-on-stream",
        "SETTINGS on a stream (§6.5)",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| frame(out, kind::SETTINGS, 0, 1, &[]))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-ack-payload",
        "an acknowledgement with a payload (§6.5)",
        O::ProtocolError,
        |p| {
            instead(p, |out, _| {
                frame(out, kind::SETTINGS, flags::ACK, 0, &[0; 6])
            })
        },
    ),
    Behaviour::new(
        "h2-settings-no-streams",
        "MAX_CONCURRENT_STREAMS of 0, for ever",
        O::DeadlineExceeded,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| {
                write::settings(out, &[(setting::MAX_CONCURRENT_STREAMS, 0)])
            })?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-window-none",
        "INITIAL_WINDOW_SIZE of 0, and no room ever",
        O::DeadlineExceeded,
        |p| {
            p.take(PREFACE)?;
            send_frames(p, |out| {
                write::settings(out, &[(setting::INITIAL_WINDOW_SIZE, 0)])
            })?;
            p.wait()
        },
    ),
    Behaviour::new(
        "h2-settings-flood",
        "SETTINGS without end, and reads nothing",
        O::DeadlineExceeded,
        |p| {
            request(p)?;
            let mut out = Vec::new();
            write::settings(&mut out, &[]);
            p.flood(&out)
        },
    ),
    Behaviour::new(
        "h2-ping-flood",
        "PING without end, and reads nothing",
        O::DeadlineExceeded,
        |p| {
            request(p)?;
            let mut out = Vec::new();
            frame(&mut out, kind::PING, 0, 0, b"pingping");
            p.flood(&out)
        },
    ),
    Behaviour::new(
        "h2-ping-length",
        "PING of 7 bytes (§6.7)",
        O::ProtocolError,
        |p| instead(p, |out, _| frame(out, kind::PING, 0, 0, &[0; 7])),
    ),
    Behaviour::new(
        "h2-ping-on-stream",
        "PING on a stream (§6.7)",
        O::ProtocolError,
        |p| instead(p, |out, stream| frame(out, kind::PING, 0, stream, &[0; 8])),
    ),
    Behaviour::new(
        "h2-pings-then-answer",
        "1,000 PINGs before a good answer",
        O::Ok,
        |p| {
            let stream = request(p)?;
            for _ in 0..1000 {
                send_frames(p, |out| frame(out, kind::PING, 0, 0, b"pingping"))?;
            }
            answers(p, stream)
        },
    ),
    // Going away.
    Behaviour::new(
        "h2-goaway-at-once",
        "GOAWAY behind its SETTINGS",
        O::Goaway,
        |p| {
            p.take(PREFACE)?;
            // In one write: no request can have come in between.
            send_frames(p, |out| {
                write::settings(out, &[]);
                write::goaway(out, 0, ErrorCode::NO_ERROR, b"");
            })
        },
    ),
    Behaviour::new(
        "h2-goaway-before-answer",
        "GOAWAY that leaves the request out",
        O::Goaway,
        |p| instead(p, |out, _| write::goaway(out, 0, ErrorCode::NO_ERROR, b"")),
    ),
    Behaviour::new(
        "h2-goaway-calm",
        "GOAWAY with ENHANCE_YOUR_CALM",
        O::Goaway,
        |p| {
            instead(p, |out, _| {
                write::goaway(out, 0, ErrorCode::ENHANCE_YOUR_CALM, b"too_many_pings")
            })
        },
    ),
    Behaviour::new(
        "h2-goaway-then-answer",
        "GOAWAY that takes the request in, and a good answer",
        O::Ok,
        |p| {
            instead(p, |out, stream| {
                write::goaway(out, stream, ErrorCode::NO_ERROR, b"");
                answer(out, stream);
            })
        },
    ),
    Behaviour::new(
        "h2-goaway-taken-back",
        "takes the request in, then leaves it out after all",
        O::Goaway,
        |p| {
            instead(p, |out, stream| {
                write::goaway(out, stream, ErrorCode::NO_ERROR, b"");
                write::goaway(out, 0, ErrorCode::NO_ERROR, b"");
            })
        },
    ),
    Behaviour::new("h2-goaway-storm", "GOAWAY without end", O::Goaway, |p| {
        request(p)?;
        let mut out = Vec::new();
        write::goaway(&mut out, 0, ErrorCode::NO_ERROR, b"");
        p.flood(&out)
    }),
    Behaviour::new(
        "h2-goaway-length",
        "GOAWAY of 4 bytes (§6.8)",
        O::ProtocolError,
        |p| instead(p, |out, _| frame(out, kind::GOAWAY, 0, 0, &[0; 4])),
    ),
    // Streams.
    Behaviour::new(
        "h2-refused-stream",
        "RST_STREAM with REFUSED_STREAM",
        O::StreamRefused,
        |p| {
            instead(p, |out, s| {
                write::reset_stream(out, s, ErrorCode::REFUSED_STREAM)
            })
        },
    ),
    Behaviour::new(
        "h2-reset-stream",
        "RST_STREAM with INTERNAL_ERROR",
        O::StreamReset,
        |p| {
            instead(p, |out, s| {
                write::reset_stream(out, s, ErrorCode::INTERNAL_ERROR)
            })
        },
    ),
    Behaviour::new(
        "h2-reset-stream-unknown-code",
        "RST_STREAM with a code that does not exist",
        O::StreamReset,
        |p| instead(p, |out, s| write::reset_stream(out, s, ErrorCode(0xdead))),
    ),
    Behaviour::new(
        "h2-reset-stream-after-head",
        "RST_STREAM in the middle of an answer",
        O::StreamReset,
        |p| {
            instead(p, |out, s| {
                head(out, s);
                write::reset_stream(out, s, ErrorCode::INTERNAL_ERROR);
            })
        },
    ),
    Behaviour::new(
        "h2-reset-stream-cancel",
        "RST_STREAM with CANCEL",
        O::Cancelled,
        |p| instead(p, |out, s| write::reset_stream(out, s, ErrorCode::CANCEL)),
    ),
    Behaviour::new(
        "h2-reset-stream-calm",
        "RST_STREAM with ENHANCE_YOUR_CALM",
        O::ResourceExhausted,
        |p| {
            instead(p, |out, s| {
                write::reset_stream(out, s, ErrorCode::ENHANCE_YOUR_CALM)
            })
        },
    ),
    Behaviour::new(
        "h2-reset-stream-security",
        "RST_STREAM with INADEQUATE_SECURITY",
        O::PermissionDenied,
        |p| {
            instead(p, |out, s| {
                write::reset_stream(out, s, ErrorCode::INADEQUATE_SECURITY)
            })
        },
    ),
    Behaviour::new(
        "h2-reset-after-answer",
        "a good answer, and RST_STREAM with NO_ERROR behind it (§8.1)",
        O::Ok,
        |p| {
            instead(p, |out, s| {
                answer(out, s);
                write::reset_stream(out, s, ErrorCode::NO_ERROR);
            })
        },
    ),
    Behaviour::new(
        "h2-reset-stream-length",
        "RST_STREAM of 3 bytes (§6.4)",
        O::ProtocolError,
        |p| instead(p, |out, s| frame(out, kind::RST_STREAM, 0, s, &[0; 3])),
    ),
    Behaviour::new(
        "h2-reset-idle-stream",
        "RST_STREAM of a stream that nobody opened (§5.1)",
        O::ProtocolError,
        |p| instead(p, |out, _| write::reset_stream(out, 999, ErrorCode::CANCEL)),
    ),
    Behaviour::new(
        "h2-data-before-headers",
        "DATA before HEADERS",
        O::ProtocolError,
        |p| instead(p, |out, s| write::data(out, s, MESSAGE, End(false))),
    ),
    Behaviour::new(
        "h2-data-on-idle-stream",
        "DATA on a stream that nobody opened (§5.1)",
        O::ProtocolError,
        |p| instead(p, |out, _| write::data(out, 999, MESSAGE, End(false))),
    ),
    Behaviour::new(
        "h2-data-on-stream-0",
        "DATA on stream 0 (§6.1)",
        O::ProtocolError,
        |p| instead(p, |out, _| write::data(out, 0, MESSAGE, End(false))),
    ),
    Behaviour::new(
        "h2-headers-on-stream-0",
        "HEADERS on stream 0 (§6.2)",
        O::ProtocolError,
        |p| instead(p, |out, _| head(out, 0)),
    ),
    Behaviour::new(
        "h2-headers-on-even-stream",
        "HEADERS on a stream of the server's own (§5.1.1)",
        O::ProtocolError,
        |p| instead(p, |out, _| head(out, 2)),
    ),
    Behaviour::new(
        "h2-push",
        "PUSH_PROMISE where push is off (§8.4)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                frame(
                    out,
                    kind::PUSH_PROMISE,
                    flags::END_HEADERS,
                    s,
                    &[0, 0, 0, 2, 0x88],
                )
            })
        },
    ),
    Behaviour::new(
        "h2-trailers-twice",
        "HEADERS after the end of the stream (§5.1)",
        O::Ok,
        |p| {
            instead(p, |out, s| {
                answer(out, s);
                trailers(out, s);
            })
        },
    ),
    Behaviour::new(
        "h2-unknown-frames",
        "frames of unknown kinds about a good answer (§5.5)",
        O::Ok,
        |p| {
            instead(p, |out, s| {
                frame(out, 0x42, 0xff, s, &[7; 1000]);
                head(out, s);
                frame(out, 0xbe, 0, 0, b"");
                write::data(out, s, MESSAGE, End(false));
                frame(out, 0x42, 0, 12_345, &[0; 16_384]);
                trailers(out, s);
            })
        },
    ),
    // Windows.
    Behaviour::new(
        "h2-window-zero",
        "WINDOW_UPDATE by 0 for the connection (§6.9)",
        O::ProtocolError,
        |p| instead(p, |out, _| write::window_update(out, 0, 0)),
    ),
    Behaviour::new(
        "h2-window-zero-stream",
        "WINDOW_UPDATE by 0 for the stream (§6.9)",
        O::ProtocolError,
        |p| instead(p, |out, s| write::window_update(out, s, 0)),
    ),
    Behaviour::new(
        "h2-window-overflow",
        "the connection's window grows beyond 2^31 − 1 (§6.9.1)",
        O::ProtocolError,
        |p| {
            instead(p, |out, _| {
                write::window_update(out, 0, (1 << 31) - 1);
                write::window_update(out, 0, (1 << 31) - 1);
            })
        },
    ),
    Behaviour::new(
        "h2-window-length",
        "WINDOW_UPDATE of 3 bytes (§6.9)",
        O::ProtocolError,
        |p| instead(p, |out, _| frame(out, kind::WINDOW_UPDATE, 0, 0, &[0; 3])),
    ),
    // Frames and header blocks.
    Behaviour::new(
        "h2-frame-too-long",
        "a frame of 16 MiB − 1 (§4.2)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                write::head(out, (1 << 24) - 1, kind::DATA, 0, s)
            })
        },
    ),
    Behaviour::new(
        "h2-padding",
        "padding longer than its frame (§6.1)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                head(out, s);
                frame(out, kind::DATA, flags::PADDED, s, &[200, 1, 2, 3]);
            })
        },
    ),
    Behaviour::new(
        "h2-continuation-missing",
        "HEADERS without END_HEADERS, and then DATA (§6.10)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                frame(out, kind::HEADERS, 0, s, &[0x88]);
                write::data(out, s, MESSAGE, End(false));
            })
        },
    ),
    Behaviour::new(
        "h2-continuation-alone",
        "CONTINUATION without HEADERS (§6.10)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                frame(out, kind::CONTINUATION, flags::END_HEADERS, s, &[0x88])
            })
        },
    ),
    Behaviour::new(
        "h2-continuation-flood",
        "CONTINUATION without end",
        O::ProtocolError,
        |p| {
            let stream = request(p)?;
            send_frames(p, |out| frame(out, kind::HEADERS, 0, stream, &[0x88]))?;
            let mut out = Vec::new();
            frame(&mut out, kind::CONTINUATION, 0, stream, b"\x00\x01a\x01b");
            p.flood(&out)
        },
    ),
    Behaviour::new(
        "h2-continuation-empty-flood",
        "empty CONTINUATION without end",
        O::ProtocolError,
        |p| {
            let stream = request(p)?;
            send_frames(p, |out| frame(out, kind::HEADERS, 0, stream, &[0x88]))?;
            let mut out = Vec::new();
            frame(&mut out, kind::CONTINUATION, 0, stream, b"");
            p.flood(&out)
        },
    ),
    Behaviour::new(
        "h2-data-empty-flood",
        "empty DATA without end (CVE-2019-9518)",
        O::DeadlineExceeded,
        |p| {
            let stream = request(p)?;
            send_frames(p, |out| head(out, stream))?;
            let mut out = Vec::new();
            write::data(&mut out, stream, b"", End(false));
            p.flood(&out)
        },
    ),
    Behaviour::new(
        "h2-hpack-index",
        "an index beyond the table (RFC 7541 §2.3.3)",
        O::ProtocolError,
        |p| block(p, &[0xff, 0xff, 0x0f]),
    ),
    Behaviour::new(
        "h2-hpack-index-zero",
        "index 0 (RFC 7541 §6.1)",
        O::ProtocolError,
        |p| block(p, &[0x80]),
    ),
    Behaviour::new(
        "h2-hpack-integer",
        "an integer without end (RFC 7541 §5.1)",
        O::ProtocolError,
        |p| block(p, &[0xff; 64]),
    ),
    Behaviour::new(
        "h2-hpack-huffman",
        "a Huffman code that is only padding (RFC 7541 §5.2)",
        O::ProtocolError,
        |p| block(p, &[0x88, 0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x01, b'x']),
    ),
    Behaviour::new(
        "h2-hpack-cut",
        "a block that ends within a field",
        O::ProtocolError,
        |p| block(p, &[0x88, 0x00, 0x0a, b'x']),
    ),
    Behaviour::new(
        "h2-hpack-table-size",
        "a table larger than was allowed (RFC 7541 §6.3)",
        O::ProtocolError,
        |p| block(p, &[0x3f, 0xe1, 0xff, 0xff, 0x7f, 0x88]),
    ),
    Behaviour::new(
        "h2-hpack-bomb",
        "4,000 bytes in the table, named 16,000 times",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                // Literal with indexing: `a: bbb…`; the entry is index 62 from then on.
                let mut block = vec![0x88, 0x40, 0x01, b'a', 0x7f, 0xa1, 0x1e];
                block.extend([b'b'; 4000]);
                block.extend([0xbe; 16_000]);
                write::header_block(out, s, &block, End(false));
            })
        },
    ),
    Behaviour::new(
        "h2-header-upper-case",
        "a field name in upper case (RFC 9113 §8.2.1)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                headers(out, s, &[HEAD[0], HEAD[1], ("Grpc-Status", "0")], true)
            })
        },
    ),
    Behaviour::new(
        "h2-header-connection",
        "a connection-specific field (RFC 9113 §8.2.2)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                headers(
                    out,
                    s,
                    &[
                        HEAD[0],
                        HEAD[1],
                        ("connection", "keep-alive"),
                        ("grpc-status", "0"),
                    ],
                    true,
                )
            })
        },
    ),
    Behaviour::new(
        "h2-header-no-status",
        "no :status (RFC 9113 §8.3.2)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                headers(out, s, &[HEAD[1], ("grpc-status", "0")], true)
            })
        },
    ),
    Behaviour::new(
        "h2-header-late-status",
        ":status behind a field (RFC 9113 §8.3)",
        O::ProtocolError,
        |p| {
            instead(p, |out, s| {
                headers(out, s, &[HEAD[1], HEAD[0], ("grpc-status", "0")], true)
            })
        },
    ),
    Behaviour::new(
        "h2-header-list-long",
        "1 MiB of header fields",
        O::ProtocolError,
        |p| {
            let long = "x".repeat(1 << 20);
            instead(p, |out, s| {
                headers(
                    out,
                    s,
                    &[
                        HEAD[0],
                        HEAD[1],
                        ("grpc-message", &long),
                        ("grpc-status", "14"),
                    ],
                    true,
                )
            })
        },
    ),
    // gRPC.
    Behaviour::new(
        "grpc-no-trailers",
        "the stream ends with DATA: no status",
        O::MissingStatus,
        |p| {
            instead(p, |out, s| {
                head(out, s);
                write::data(out, s, MESSAGE, End(true));
            })
        },
    ),
    Behaviour::new(
        "grpc-head-only",
        "the stream ends with its head: no status",
        O::MissingStatus,
        |p| instead(p, |out, s| headers(out, s, &HEAD, true)),
    ),
    Behaviour::new(
        "grpc-no-message",
        "status OK and no message",
        O::BadAnswer,
        |p| status(p, &[("grpc-status", "0")]),
    ),
    Behaviour::new(
        "grpc-two-messages",
        "two messages where one was asked for",
        O::BadAnswer,
        |p| message(p, &[], &[MESSAGE, MESSAGE].concat()),
    ),
    Behaviour::new(
        "grpc-status-unavailable",
        "status 14",
        O::Unavailable,
        |p| {
            status(
                p,
                &[("grpc-status", "14"), ("grpc-message", "over%20there")],
            )
        },
    ),
    Behaviour::new("grpc-status-unknown-number", "status 99", O::Unknown, |p| {
        status(p, &[("grpc-status", "99")])
    }),
    Behaviour::new(
        "grpc-status-no-number",
        "a status of letters",
        O::Unknown,
        |p| status(p, &[("grpc-status", "fine")]),
    ),
    Behaviour::new(
        "grpc-message-controls",
        "a message with tabs, newlines and bad UTF-8",
        O::Internal,
        |p| {
            status(
                p,
                &[
                    ("grpc-status", "13"),
                    ("grpc-message", "line%0Aline%09tab%FF%00%1B[31mred"),
                ],
            )
        },
    ),
    Behaviour::new(
        "grpc-message-long",
        "a grpc-message of 12 kB",
        O::Internal,
        |p| {
            let long = "y".repeat(12_000);
            status(p, &[("grpc-status", "13"), ("grpc-message", &long)])
        },
    ),
    Behaviour::new(
        "grpc-length-huge",
        "a message declared as 2 GiB",
        O::MessageTooLarge,
        |p| message(p, &[], &[0, 0x7f, 0xff, 0xff, 0xff, 1, 2, 3]),
    ),
    Behaviour::new(
        "grpc-message-cut",
        "the stream ends within a message",
        O::BadAnswer,
        |p| {
            let mut bytes = MESSAGE.to_vec();
            bytes[4] = 100;
            message(p, &[], &bytes)
        },
    ),
    Behaviour::new(
        "grpc-message-flag",
        "a compression flag of 7",
        O::BadAnswer,
        |p| message(p, &[], &[7, 0, 0, 0, 1, 1]),
    ),
    Behaviour::new(
        "grpc-compressed-unasked",
        "a compressed message, and no encoding named",
        O::CompressionUnsupported,
        |p| message(p, &[], &[1, 0, 0, 0, 1, 1]),
    ),
    Behaviour::new(
        "grpc-compressed-unknown",
        "an encoding that was not offered",
        O::CompressionUnsupported,
        |p| message(p, &[("grpc-encoding", "snappy")], &[1, 0, 0, 0, 1, 1]),
    ),
    Behaviour::new(
        "grpc-message-no-protobuf",
        "a message that is no protobuf",
        O::BadAnswer,
        |p| message(p, &[], &[0, 0, 0, 0, 4, 0x0a, 0xff, 0xff, 0xff]),
    ),
    Behaviour::new("grpc-http-503", "HTTP status 503", STATUS, |p| {
        instead(p, |out, s| {
            let fields = [(":status", "503"), ("content-type", "text/html")];
            headers(out, s, &fields, true)
        })
    }),
    Behaviour::new("grpc-http-302", "a redirect", STATUS, |p| {
        instead(p, |out, s| {
            let fields = [(":status", "302"), ("location", "/elsewhere")];
            headers(out, s, &fields, true)
        })
    }),
    Behaviour::new("grpc-html", "a page with status 200", O::BadAnswer, |p| {
        instead(p, |out, s| {
            headers(
                out,
                s,
                &[(":status", "200"), ("content-type", "text/html")],
                false,
            );
            write::data(out, s, b"<html>welcome</html>", End(true));
        })
    }),
    Behaviour::new(
        "grpc-informational",
        "103 Early Hints before a good answer",
        O::Ok,
        |p| {
            instead(p, |out, s| {
                headers(out, s, &[(":status", "103"), ("link", "</a>")], false);
                answer(out, s);
            })
        },
    ),
    Behaviour::new(
        "grpc-informational-flood",
        "103 without end",
        O::DeadlineExceeded,
        |p| {
            let stream = request(p)?;
            let mut out = Vec::new();
            headers(&mut out, stream, &[(":status", "103")], false);
            p.flood(&out)
        },
    ),
    Behaviour::new(
        "grpc-stall-after-head",
        "a head, and then silence",
        O::DeadlineExceeded,
        |p| instead(p, head),
    ),
    Behaviour::new(
        "grpc-stall-in-message",
        "half a message, and then silence",
        O::DeadlineExceeded,
        |p| {
            instead(p, |out, s| {
                head(out, s);
                write::data(out, s, &MESSAGE[..8], End(false));
            })
        },
    ),
    Behaviour::new(
        "grpc-close-in-message",
        "half a message, and closes",
        O::ConnectionClosed,
        |p| {
            let stream = request(p)?;
            send_frames(p, |out| {
                head(out, stream);
                write::data(out, stream, &MESSAGE[..8], End(false));
            })
        },
    ),
    Behaviour::new(
        "grpc-reset-in-message",
        "half a message, and RST",
        O::Reset,
        |p| {
            let stream = request(p)?;
            send_frames(p, |out| {
                head(out, stream);
                write::data(out, stream, &MESSAGE[..8], End(false));
            })?;
            p.reset()
        },
    ),
    Behaviour::new(
        "grpc-cut-frame",
        "a frame's head, and closes",
        O::ConnectionClosed,
        |p| {
            let stream = request(p)?;
            send_frames(p, |out| write::head(out, 100, kind::DATA, 0, stream))
        },
    ),
    Behaviour::new(
        "grpc-answer-unasked",
        "an answer before any request",
        O::ProtocolError,
        |p| {
            p.take(PREFACE)?;
            // In one write: no request can have come in between.
            send_frames(p, |out| {
                write::settings(out, &[]);
                answer(out, 1);
            })?;
            p.wait()
        },
    ),
];
