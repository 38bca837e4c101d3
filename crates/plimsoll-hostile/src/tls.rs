//! Misbehaving TLS 1.3 servers (RFC 8446) that are asked for a file over HTTP/1.1.

use std::io;

use plimsoll_model::Outcome as O;

use super::http1;
use super::peer::ScriptTransport;
use super::script::{HostileBehaviour, HostileStep, HostileStep::*};

/// Reads the client's first record, the ClientHello.
pub(super) fn read_request(peer: &mut ScriptTransport) -> io::Result<u32> {
    read_hello(peer).map(|_| 0)
}

fn read_hello(peer: &mut ScriptTransport) -> io::Result<Vec<u8>> {
    let head = peer.read_exact(5)?;
    peer.read_exact(usize::from(u16::from_be_bytes([head[3], head[4]])))
}

/// Writes a record of this type, unencrypted.
fn write_record(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    out.extend([kind, 3, 3, high, low]);
    out.extend(payload);
}

/// Writes a fatal alert of this description (RFC 8446 §6).
fn write_alert(out: &mut Vec<u8>, description: u8) {
    write_record(out, 21, &[2, description]);
}

/// Writes the beginning of a ServerHello of 16 MiB.
fn write_huge_message(out: &mut Vec<u8>, _: u32) {
    write_record(out, 22, &[2, 0xff, 0xff, 0xff]);
}

/// Makes a ServerHello with this suite, these extensions and the session id of `client`, a ClientHello.
fn server_hello(client: &[u8], suite: u16, extensions: &[u8]) -> Vec<u8> {
    // The ClientHello has 4 bytes of head, 2 of version and 32 of random before the length of the session id.
    let id = client.get(38).map_or(0, |n| usize::from(*n));
    let id = client.get(39..39 + id).unwrap_or_default();
    let mut body = vec![3, 3];
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

/// Answers a ClientHello with a ServerHello.
fn send_server_hello(peer: &mut ScriptTransport, suite: u16, extensions: &[u8]) -> io::Result<()> {
    let client = read_hello(peer)?;
    peer.write(|out| write_record(out, 22, &server_hello(&client, suite, extensions)))
}

/// Answers a ClientHello with a ServerHello of TLS 1.1.
fn send_tls_1_1_hello(peer: &mut ScriptTransport) -> io::Result<()> {
    let client = read_hello(peer)?;
    let mut message = server_hello(&client, 0xc013, &[]);
    // The version follows the message's head.
    message[4..6].copy_from_slice(&[3, 2]);
    peer.write(|out| write_record(out, 22, &message))
}

/// Answers a ClientHello with a HelloRetryRequest for each of these lists of extensions. A HelloRetryRequest is a
/// ServerHello with a special random value (§4.1.3).
fn send_retry_requests(peer: &mut ScriptTransport, extensions: &[&[u8]]) -> io::Result<()> {
    let client = read_hello(peer)?;
    for extensions in extensions {
        let mut message = server_hello(&client, 0x1301, extensions);
        message[6..38].copy_from_slice(&[
            0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65,
            0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2,
            0xc8, 0xa8, 0x33, 0x9c,
        ]);
        peer.write(|out| write_record(out, 22, &message))?;
    }
    Ok(())
}

const SEND_HALF_HELLO: HostileStep = Do(|p| {
    let client = read_hello(p)?;
    let message = server_hello(&client, 0x1301, &SUPPORTED_VERSIONS);
    p.write(|out| write_record(out, 22, &message[..message.len() / 2]))
});

/// The extension `supported_versions` with TLS 1.3, which every ServerHello must contain.
const SUPPORTED_VERSIONS: [u8; 6] = [0, 43, 0, 2, 3, 4];

/// [`SUPPORTED_VERSIONS`] and a cookie. The cookie makes a first HelloRetryRequest legal; a second one is never legal.
const VERSIONS_AND_COOKIE: [u8; 16] = [0, 43, 0, 2, 3, 4, 0, 44, 0, 6, 0, 4, 1, 2, 3, 4];

/// Completes a correct handshake, and reads the request.
const READ_REQUEST: HostileStep = Do(|p| {
    p.complete_handshake()?;
    http1::read_request(p).map(drop)
});

/// Runs [`READ_REQUEST`], then sends the head of a response and a shorter body than the head declares.
const SEND_HALF_ANSWER: HostileStep = Do(|p| {
    p.run_steps(&[READ_REQUEST])?;
    p.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf")
});

/// Makes a behaviour that begins with a correct handshake.
const fn behaviour_after_handshake(name: &'static str, outcome: O) -> HostileBehaviour {
    HostileBehaviour {
        needs_certificate: true,
        ..HostileBehaviour::new(name, outcome)
    }
}

/// Makes a behaviour that answers a ClientHello with this alert.
const fn alert_behaviour<const DESCRIPTION: u8>(
    name: &'static str,
    outcome: O,
    about: &'static str,
) -> HostileBehaviour {
    HostileBehaviour::new(name, outcome)
        .with_description(about)
        .answers_with_frames(|out, _| write_alert(out, DESCRIPTION))
}

pub(super) const BEHAVIOURS: &[HostileBehaviour] = &[
    // Misbehaviour in response to the ClientHello.
    HostileBehaviour::new("tls-close-at-hello", O::TlsFailed)
        .with_description("closes after the ClientHello")
        .with_steps(&[Request]),
    HostileBehaviour::new("tls-reset-at-hello", O::Reset)
        .with_description("RST after the ClientHello")
        .with_steps(&[Request, Reset]),
    HostileBehaviour::new("tls-silent", O::ConnectTimeout)
        .with_description("accepts the ClientHello and sends nothing")
        .with_steps(&[Wait]),
    HostileBehaviour::new("tls-http", O::TlsNotTls)
        .with_description("an HTTP/1.1 answer")
        .answers_with(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    HostileBehaviour::new("tls-http2", O::TlsNotTls)
        .with_description("an HTTP/2 SETTINGS frame")
        .answers_with(&[0, 0, 0, 4, 0, 0, 0, 0, 0]),
    HostileBehaviour::new("tls-ssh", O::TlsNotTls)
        .with_description("an SSH banner")
        .answers_with(b"SSH-2.0-OpenSSH_9.2\r\n"),
    HostileBehaviour::new("tls-garbage", O::TlsNotTls)
        .with_description("bytes that are not a record")
        .answers_with(&[0xa5; 4096]),
    HostileBehaviour::new("tls-record-long", O::TlsFailed)
        .with_description("a record over 2^14 + 256 bytes (§5.2)")
        .answers_with_frames(|out, _| write_record(out, 22, &[0; 20_000])),
    HostileBehaviour::new("tls-record-empty", O::TlsFailed)
        .with_description("an empty handshake record (§5.1)")
        .answers_with_frames(|out, _| write_record(out, 22, &[])),
    HostileBehaviour::new("tls-data-first", O::TlsFailed)
        .with_description("application data in place of a ServerHello")
        .answers_with_frames(|out, _| write_record(out, 23, b"hello")),
    HostileBehaviour::new("tls-ccs-flood", O::TlsFailed)
        .with_description("change_cipher_spec without end (§5)")
        .with_steps(&[Request, FloodFrames(|out, _| write_record(out, 20, &[1]))]),
    HostileBehaviour::new("tls-warning-flood", O::TlsFailed)
        .with_description("warnings without end")
        .with_steps(&[
            Request,
            FloodFrames(|out, _| write_record(out, 21, &[1, 90])),
        ]),
    HostileBehaviour::new("tls-message-huge", O::TlsFailed)
        .with_description("a ServerHello declared as 16 MiB")
        .with_steps(&[
            Request,
            Write(write_huge_message),
            FloodFrames(|out, _| write_record(out, 22, &[0; 16_000])),
        ]),
    HostileBehaviour::new("tls-hello-cut", O::TlsFailed)
        .with_description("half a ServerHello, and closes")
        .with_steps(&[SEND_HALF_HELLO]),
    HostileBehaviour::new("tls-hello-stall", O::ConnectTimeout)
        .with_description("half a ServerHello, and then silence")
        .with_steps(&[SEND_HALF_HELLO, Wait]),
    HostileBehaviour::new("tls-11", O::TlsVersion)
        .with_description("a ServerHello of TLS 1.1")
        .with_steps(&[Do(send_tls_1_1_hello), Wait]),
    HostileBehaviour::new("tls-12", O::TlsFailed)
        .with_description("a ServerHello of TLS 1.2, and then silence")
        .with_steps(&[Do(|p| send_server_hello(p, 0xc02f, &[])), Wait]),
    HostileBehaviour::new("tls-suite-unasked", O::TlsFailed)
        .with_description("a suite that was not offered (§4.1.3)")
        .with_steps(&[
            Do(|p| send_server_hello(p, 0x1305, &SUPPORTED_VERSIONS)),
            Wait,
        ]),
    HostileBehaviour::new("tls-no-key-share", O::TlsFailed)
        .with_description("a ServerHello without a key share (§4.1.3)")
        .with_steps(&[
            Do(|p| send_server_hello(p, 0x1301, &SUPPORTED_VERSIONS)),
            Wait,
        ]),
    HostileBehaviour::new("tls-retry-for-nothing", O::TlsFailed)
        .with_description("a HelloRetryRequest that changes nothing (§4.1.4)")
        .with_steps(&[Do(|p| send_retry_requests(p, &[&SUPPORTED_VERSIONS])), Wait]),
    HostileBehaviour::new("tls-retry-twice", O::TlsFailed)
        .with_description("two HelloRetryRequests (§4.1.4)")
        .with_steps(&[
            Do(|p| send_retry_requests(p, &[&VERSIONS_AND_COOKIE, &VERSIONS_AND_COOKIE])),
            Wait,
        ]),
    // Alerts in response to the ClientHello.
    HostileBehaviour::new("tls-alert-close", O::TlsFailed)
        .with_description("close_notify in answer to the ClientHello, and closes (§6.1)")
        .with_steps(&[Request, Write(|out, _| write_record(out, 21, &[1, 0]))]),
    alert_behaviour::<40>(
        "tls-alert-handshake",
        O::TlsNoCommonParameters,
        "handshake_failure",
    ),
    alert_behaviour::<47>("tls-alert-parameter", O::TlsAlert, "illegal_parameter"),
    alert_behaviour::<50>("tls-alert-decode", O::TlsAlert, "decode_error"),
    alert_behaviour::<70>("tls-alert-version", O::TlsVersion, "protocol_version"),
    alert_behaviour::<71>(
        "tls-alert-security",
        O::TlsNoCommonParameters,
        "insufficient_security",
    ),
    alert_behaviour::<80>("tls-alert-internal", O::TlsAlert, "internal_error"),
    alert_behaviour::<112>("tls-alert-name", O::TlsNameMismatch, "unrecognized_name"),
    alert_behaviour::<120>("tls-alert-alpn", O::TlsAlpn, "no_application_protocol"),
    alert_behaviour::<200>(
        "tls-alert-number",
        O::TlsAlert,
        "an alert that does not exist",
    ),
    HostileBehaviour::new("tls-alert-cut", O::TlsFailed)
        .with_description("an alert of one byte")
        .answers_with_frames(|out, _| write_record(out, 21, &[2])),
    // Misbehaviour after a correct handshake.
    behaviour_after_handshake("tls-close-after-handshake", O::ConnectionClosed)
        .with_description("closes in good order, without an answer")
        .with_steps(&[READ_REQUEST, CloseNotify]),
    behaviour_after_handshake("tls-fin-after-handshake", O::Truncated)
        .with_description("ends the connection without close_notify")
        .with_steps(&[READ_REQUEST]),
    behaviour_after_handshake("tls-reset-after-handshake", O::Reset)
        .with_description("RST in place of an answer")
        .with_steps(&[READ_REQUEST, Reset]),
    behaviour_after_handshake("tls-silent-after-handshake", O::DeadlineExceeded)
        .with_description("never answers")
        .with_steps(&[READ_REQUEST, Wait]),
    behaviour_after_handshake("tls-fin-in-body", O::Truncated)
        .with_description("ends the connection in the middle of a body, without close_notify")
        .with_steps(&[SEND_HALF_ANSWER]),
    behaviour_after_handshake("tls-close-in-body", O::BodyLength)
        .with_description("close_notify in the middle of a body")
        .with_steps(&[SEND_HALF_ANSWER, CloseNotify]),
    behaviour_after_handshake("tls-close-in-body-open", O::BodyLength)
        .with_description("close_notify in the middle of a body, and leaves the connection open")
        .with_steps(&[SEND_HALF_ANSWER, CloseNotify, Wait]),
    behaviour_after_handshake("tls-reset-in-body", O::Reset)
        .with_description("RST in the middle of a body")
        .with_steps(&[SEND_HALF_ANSWER, Reset]),
    behaviour_after_handshake("tls-plaintext-in-body", O::TlsFailed)
        .with_description("plaintext in the middle of a body")
        .with_steps(&[
            SEND_HALF_ANSWER,
            SendRaw(|out, _| out.extend(b"and the rest in plaintext")),
            Wait,
        ]),
    behaviour_after_handshake("tls-bad-tag-in-body", O::TlsFailed)
        .with_description("a record that was tampered with")
        .with_steps(&[
            SEND_HALF_ANSWER,
            SendRaw(|out, _| write_record(out, 23, &[0x5a; 64])),
            Wait,
        ]),
    behaviour_after_handshake("tls-alert-in-body", O::TlsFailed)
        .with_description("an alert in plaintext in the middle of a body")
        .with_steps(&[
            SEND_HALF_ANSWER,
            SendRaw(|out, _| write_alert(out, 80)),
            Wait,
        ]),
    behaviour_after_handshake("tls-record-long-in-body", O::TlsFailed)
        .with_description("a record over 2^14 + 256 bytes in the middle of a body")
        .with_steps(&[
            SEND_HALF_ANSWER,
            SendRaw(|out, _| write_record(out, 23, &[0; 17_000])),
            Wait,
        ]),
    behaviour_after_handshake("tls-cut-record", O::Truncated)
        .with_description("half a record, and ends the connection")
        .with_steps(&[
            SEND_HALF_ANSWER,
            SendRaw(|out, _| {
                write_record(out, 23, &[0x5a; 64]);
                out.truncate(20);
            }),
        ]),
];
