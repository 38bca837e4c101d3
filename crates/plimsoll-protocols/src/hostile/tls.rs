//! TLS 1.3 (RFC 8446) about a file over HTTP/1.1, done wrong.

use std::io;

use plimsoll_model::Outcome as O;

use super::{Behaviour, Peer};

/// Reads the client's first record, the ClientHello.
fn hello(peer: &mut Peer) -> io::Result<Vec<u8>> {
    let head = peer.take(5)?;
    peer.take(usize::from(u16::from_be_bytes([head[3], head[4]])))
}

/// A record of this type, as it is.
fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    [&[kind, 3, 3, high, low], payload].concat()
}

/// A fatal alert of this description (RFC 8446 §6).
fn alert(description: u8) -> Vec<u8> {
    record(21, &[2, description])
}

/// These bytes in answer to a ClientHello, and then nothing more.
fn instead(peer: &mut Peer, answer: &[u8]) -> io::Result<()> {
    hello(peer)?;
    peer.send_raw(answer)?;
    peer.wait()
}

/// A ServerHello with this version, suite and extensions, which repeats the client's session id.
fn server_hello(client: &[u8], version: u16, suite: u16, extensions: &[u8]) -> Vec<u8> {
    // 4 of head, 2 of version, 32 of random; then the session id with its length.
    let id = client.get(38).map_or(0, |n| usize::from(*n));
    let id = client.get(39..39 + id).unwrap_or_default();
    let mut body = version.to_be_bytes().to_vec();
    body.extend([0x77; 32]);
    body.push(id.len() as u8);
    body.extend(id);
    body.extend(suite.to_be_bytes());
    body.push(0);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let [_, a, b, c] = (body.len() as u32).to_be_bytes();
    [&[2, a, b, c], &body[..]].concat()
}

/// A ServerHello whose random says that it is a HelloRetryRequest (§4.1.3).
fn retry(client: &[u8], extensions: &[u8]) -> Vec<u8> {
    let mut message = server_hello(client, 0x0303, 0x1301, extensions);
    message[6..38].copy_from_slice(&[
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ]);
    record(22, &message)
}

/// `supported_versions` with TLS 1.3, as every ServerHello of it has.
const VERSIONS: [u8; 6] = [0, 43, 0, 2, 3, 4];

/// A good handshake and the request behind it.
fn request(peer: &mut Peer) -> io::Result<()> {
    peer.secure()?;
    peer.take_until(b"\r\n\r\n").map(|_| ())
}

const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf";

const fn secured(
    name: &'static str,
    about: &'static str,
    outcome: O,
    act: fn(&mut Peer) -> io::Result<()>,
) -> Behaviour {
    Behaviour {
        needs_certificate: true,
        ..Behaviour::new(name, about, outcome, act)
    }
}

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    // In answer to the ClientHello.
    Behaviour::new(
        "tls-close-at-hello",
        "closes after the ClientHello",
        O::TlsFailed,
        |p| hello(p).map(|_| ()),
    ),
    Behaviour::new(
        "tls-reset-at-hello",
        "RST after the ClientHello",
        O::Reset,
        |p| {
            hello(p)?;
            p.reset()
        },
    ),
    Behaviour::new(
        "tls-silent",
        "takes the ClientHello and says nothing",
        O::ConnectTimeout,
        |p| p.wait(),
    ),
    Behaviour::new("tls-http", "an HTTP/1.1 answer", O::TlsNotTls, |p| {
        instead(p, b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    }),
    Behaviour::new("tls-http2", "an HTTP/2 SETTINGS frame", O::TlsNotTls, |p| {
        instead(p, &[0, 0, 0, 4, 0, 0, 0, 0, 0])
    }),
    Behaviour::new("tls-ssh", "an SSH banner", O::TlsNotTls, |p| {
        instead(p, b"SSH-2.0-OpenSSH_9.2\r\n")
    }),
    Behaviour::new(
        "tls-garbage",
        "bytes that are no record",
        O::TlsNotTls,
        |p| instead(p, &[0xa5; 4096]),
    ),
    Behaviour::new(
        "tls-record-long",
        "a record over 2^14 + 256 bytes (§5.2)",
        O::TlsFailed,
        |p| instead(p, &record(22, &[0; 20_000])),
    ),
    Behaviour::new(
        "tls-record-empty",
        "an empty handshake record (§5.1)",
        O::TlsFailed,
        |p| instead(p, &record(22, &[])),
    ),
    Behaviour::new(
        "tls-data-first",
        "application data in place of a ServerHello",
        O::TlsFailed,
        |p| instead(p, &record(23, b"hello")),
    ),
    Behaviour::new(
        "tls-ccs-flood",
        "change_cipher_spec without end (§5)",
        O::TlsFailed,
        |p| {
            hello(p)?;
            p.flood(&record(20, &[1]))
        },
    ),
    Behaviour::new(
        "tls-warning-flood",
        "warnings without end",
        O::TlsFailed,
        |p| {
            hello(p)?;
            p.flood(&record(21, &[1, 90]))
        },
    ),
    Behaviour::new(
        "tls-message-huge",
        "a ServerHello declared as 16 MiB",
        O::TlsFailed,
        |p| {
            hello(p)?;
            p.send_raw(&record(22, &[2, 0xff, 0xff, 0xff]))?;
            p.flood(&record(22, &[0; 16_000]))
        },
    ),
    Behaviour::new(
        "tls-hello-cut",
        "half a ServerHello, and closes",
        O::TlsFailed,
        |p| {
            let client = hello(p)?;
            let message = server_hello(&client, 0x0303, 0x1301, &VERSIONS);
            p.send_raw(&record(22, &message[..message.len() / 2]))
        },
    ),
    Behaviour::new(
        "tls-hello-stall",
        "half a ServerHello, and then silence",
        O::ConnectTimeout,
        |p| {
            let client = hello(p)?;
            let message = server_hello(&client, 0x0303, 0x1301, &VERSIONS);
            p.send_raw(&record(22, &message[..message.len() / 2]))?;
            p.wait()
        },
    ),
    Behaviour::new("tls-12", "a ServerHello of TLS 1.2", O::TlsVersion, |p| {
        let client = hello(p)?;
        p.send_raw(&record(22, &server_hello(&client, 0x0303, 0xc02f, &[])))?;
        p.wait()
    }),
    Behaviour::new(
        "tls-suite-unasked",
        "a suite that was not offered (§4.1.3)",
        O::TlsFailed,
        |p| {
            let client = hello(p)?;
            p.send_raw(&record(
                22,
                &server_hello(&client, 0x0303, 0x1305, &VERSIONS),
            ))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "tls-no-key-share",
        "a ServerHello without a key share (§4.1.3)",
        O::TlsFailed,
        |p| {
            let client = hello(p)?;
            p.send_raw(&record(
                22,
                &server_hello(&client, 0x0303, 0x1301, &VERSIONS),
            ))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "tls-retry-for-nothing",
        "a HelloRetryRequest that changes nothing (§4.1.4)",
        O::TlsFailed,
        |p| {
            let client = hello(p)?;
            p.send_raw(&retry(&client, &VERSIONS))?;
            p.wait()
        },
    ),
    Behaviour::new(
        "tls-retry-twice",
        "two HelloRetryRequests (§4.1.4)",
        O::TlsFailed,
        |p| {
            let client = hello(p)?;
            // A cookie makes a retry legal; the second one is not.
            let extensions = [&VERSIONS[..], &[0, 44, 0, 6, 0, 4, 1, 2, 3, 4]].concat();
            p.send_raw(&retry(&client, &extensions))?;
            p.send_raw(&retry(&client, &extensions))?;
            p.wait()
        },
    ),
    // Alerts.
    Behaviour::new(
        "tls-alert-close",
        "close_notify in answer to the ClientHello, and closes (§6.1)",
        O::TlsFailed,
        |p| {
            hello(p)?;
            p.send_raw(&record(21, &[1, 0]))
        },
    ),
    Behaviour::new(
        "tls-alert-handshake",
        "handshake_failure",
        O::TlsNoCommonParameters,
        |p| instead(p, &alert(40)),
    ),
    Behaviour::new(
        "tls-alert-parameter",
        "illegal_parameter",
        O::TlsAlert,
        |p| instead(p, &alert(47)),
    ),
    Behaviour::new("tls-alert-decode", "decode_error", O::TlsAlert, |p| {
        instead(p, &alert(50))
    }),
    Behaviour::new(
        "tls-alert-version",
        "protocol_version",
        O::TlsVersion,
        |p| instead(p, &alert(70)),
    ),
    Behaviour::new(
        "tls-alert-security",
        "insufficient_security",
        O::TlsNoCommonParameters,
        |p| instead(p, &alert(71)),
    ),
    Behaviour::new("tls-alert-internal", "internal_error", O::TlsAlert, |p| {
        instead(p, &alert(80))
    }),
    Behaviour::new("tls-alert-name", "unrecognized_name", O::TlsAlert, |p| {
        instead(p, &alert(112))
    }),
    Behaviour::new(
        "tls-alert-alpn",
        "no_application_protocol",
        O::TlsAlpn,
        |p| instead(p, &alert(120)),
    ),
    Behaviour::new(
        "tls-alert-number",
        "an alert that does not exist",
        O::TlsAlert,
        |p| instead(p, &alert(200)),
    ),
    Behaviour::new("tls-alert-cut", "an alert of one byte", O::TlsFailed, |p| {
        instead(p, &record(21, &[2]))
    }),
    // After a good handshake.
    secured(
        "tls-close-after-handshake",
        "closes in good order, without an answer",
        O::ConnectionClosed,
        |p| {
            request(p)?;
            p.close_notify()
        },
    ),
    secured(
        "tls-fin-after-handshake",
        "ends the connection without close_notify",
        O::Truncated,
        request,
    ),
    secured(
        "tls-reset-after-handshake",
        "RST in place of an answer",
        O::Reset,
        |p| {
            request(p)?;
            p.reset()
        },
    ),
    secured(
        "tls-silent-after-handshake",
        "never answers",
        O::DeadlineExceeded,
        |p| {
            request(p)?;
            p.wait()
        },
    ),
    secured(
        "tls-fin-in-body",
        "ends the connection in the middle of a body, without close_notify",
        O::Truncated,
        |p| {
            request(p)?;
            p.send(HALF)
        },
    ),
    secured(
        "tls-close-in-body",
        "close_notify in the middle of a body",
        O::BodyLength,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.close_notify()
        },
    ),
    secured(
        "tls-close-in-body-open",
        "close_notify in the middle of a body, and leaves the connection open",
        O::BodyLength,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.close_notify()?;
            p.wait()
        },
    ),
    secured(
        "tls-reset-in-body",
        "RST in the middle of a body",
        O::Reset,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.reset()
        },
    ),
    secured(
        "tls-plaintext-in-body",
        "plaintext in the middle of a body",
        O::TlsFailed,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.send_raw(b"and the rest in plaintext")?;
            p.wait()
        },
    ),
    secured(
        "tls-bad-tag-in-body",
        "a record that was tampered with",
        O::TlsFailed,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.send_raw(&record(23, &[0x5a; 64]))?;
            p.wait()
        },
    ),
    secured(
        "tls-alert-in-body",
        "an alert in plaintext in the middle of a body",
        O::TlsFailed,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.send_raw(&alert(80))?;
            p.wait()
        },
    ),
    secured(
        "tls-record-long-in-body",
        "a record over 2^14 + 256 bytes in the middle of a body",
        O::TlsFailed,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.send_raw(&record(23, &[0; 17_000]))?;
            p.wait()
        },
    ),
    secured(
        "tls-cut-record",
        "half a record, and ends the connection",
        O::Truncated,
        |p| {
            request(p)?;
            p.send(HALF)?;
            p.send_raw(&record(23, &[0x5a; 64])[..20])
        },
    ),
];
