//! Echoes every message, as conformance suites for WebSocket servers expect.

use std::ops::ControlFlow;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use plimsoll_wire::websocket::{
    Opcode, ReaderRole, WebSocketMessage, WebSocketReader, append_frame, encode_close_payload,
};

use super::GatewayOptions;
use super::request::WebSocketUpgrade;
use super::stream::{ClientStream, send, shutdown_and_drain};

/// Serves one connection until it ends.
pub(super) async fn serve(
    options: &GatewayOptions,
    mut stream: ClientStream,
    upgrade: &WebSocketUpgrade,
) {
    let deflate = upgrade.deflate;
    let put = |out: &mut Vec<u8>, opcode, payload: &[u8]| match deflate {
        None => append_frame(out, opcode, payload),
        Some(deflate) => deflate.append_message(out, opcode, payload),
    };
    let reader = WebSocketReader::new(ReaderRole::Server, options.max_message);
    let mut reader = reader.with_deflate(deflate.is_some());
    let mut out = upgrade.encode();
    let mut input = vec![0; 64 * 1024];
    let mut ended = false;
    loop {
        // A client that does not read is disconnected after the same time as one that sends nothing.
        let written = timeout(options.ping_timeout, send(&mut stream, &out)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
        if ended {
            break;
        }
        out.clear();
        let got = match stream.read(&mut input).await {
            Ok(0) | Err(_) => break,
            Ok(got) => got,
        };
        let read = reader.read(&input[..got], |message| {
            match message {
                WebSocketMessage::Text(text) => put(&mut out, Opcode::Text, text.as_bytes()),
                WebSocketMessage::Binary(bytes) => put(&mut out, Opcode::Binary, bytes),
                WebSocketMessage::Ping(payload) => append_frame(&mut out, Opcode::Pong, payload),
                WebSocketMessage::Pong(_) => {}
                WebSocketMessage::Close { code, .. } => {
                    append_frame(&mut out, Opcode::Close, &encode_close_payload(code, ""));
                    ended = true;
                }
            }
            ControlFlow::Continue(())
        });
        if let Err(violation) = read {
            let payload = encode_close_payload(violation.code, violation.reason);
            append_frame(&mut out, Opcode::Close, &payload);
            ended = true;
        }
    }
    shutdown_and_drain(&mut stream, &[]).await;
}
