//! Invalid tokens, upgrades and frames get the right HTTP status or close code.

use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::token::TokenKeys;
use plimsoll_wire::websocket::Opcode;
use tokio::io::AsyncWriteExt;

use crate::client::{SocketClient, http, upgrade};
use crate::stack::{SECRET, Stack, quick};

#[tokio::test]
async fn token_is_checked_before_upgrade() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let (session, token) = stack.session().await;
    let gateway = stack.gateway.address;
    let foreign = TokenKeys::new(&[vec![7; 40]])
        .unwrap()
        .sign(&session)
        .unwrap();
    let other = TokenKeys::new(&[SECRET.to_vec()])
        .unwrap()
        .sign("another")
        .unwrap();
    let (_, body) = token.split_once('.').unwrap();
    let unsigned = format!(
        "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.",
        body.split_once('.').unwrap().0
    );
    for (name, header, status) in [
        ("none", String::new(), 401),
        (
            "another scheme",
            "Authorization: Basic abc\r\n".to_owned(),
            401,
        ),
        ("garbage", "Authorization: Bearer x\r\n".to_owned(), 403),
        (
            "foreign",
            format!("Authorization: Bearer {foreign}\r\n"),
            403,
        ),
        (
            "wrong session",
            format!("Authorization: Bearer {other}\r\n"),
            403,
        ),
        (
            "unsigned",
            format!("Authorization: Bearer {unsigned}\r\n"),
            403,
        ),
        (
            "in the wrong subprotocol",
            format!("Sec-WebSocket-Protocol: {token}\r\n"),
            401,
        ),
    ] {
        let request = upgrade(&format!("/agent/ws/{session}"), &header);
        let (got, head, body) = http(gateway, &request).await;
        assert_eq!(got, status, "{name}: {head} {body}");
        assert_eq!(
            head.contains("WWW-Authenticate: Bearer"),
            status == 401,
            "{head}"
        );
        assert!(!head.contains(&token) && !body.contains(&token));
    }
    let header = format!("Sec-WebSocket-Protocol: bearer, {token}\r\n");
    let request = upgrade(&format!("/agent/ws/{session}"), &header);
    let mut client = SocketClient::request(gateway, &request).await.ok().unwrap();
    stack.run(&session).await;
    assert_eq!(client.until_done().await.len(), 19);
}

#[tokio::test]
async fn malformed_requests_get_their_status() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let (session, token) = stack.session().await;
    let path = format!("/agent/ws/{session}");
    let good = upgrade(&path, &format!("Authorization: Bearer {token}\r\n"));
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from));
        good.replace(from, to)
    };
    for (name, request, status) in [
        ("path", changed("/agent/ws/", "/agent/vs/"), 404),
        ("longer path", changed(&path, &format!("{path}/more")), 404),
        ("no agent", changed("/agent/ws/", "//ws/"), 404),
        ("aiming elsewhere", changed(&session, "a:b"), 404),
        ("method", changed("GET", "POST"), 405),
        ("no upgrade", changed("Upgrade: websocket\r\n", ""), 426),
        ("old version", changed("Version: 13", "Version: 8"), 426),
        (
            "short key",
            changed("dGhlIHNhbXBsZSBub25jZQ==", "dGhl"),
            400,
        ),
        (
            "no key",
            changed("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
            400,
        ),
        ("not http", "\u{16}\u{3}\u{1} hello\r\n\r\n".to_owned(), 400),
        ("after", changed(&path, &format!("{path}?after=x")), 400),
        ("early data", format!("{good}early"), 400),
        (
            "two tokens",
            changed(
                "Authorization:",
                "Authorization: Bearer x\r\nAuthorization:",
            ),
            400,
        ),
        (
            "two tokens the other way round",
            changed(
                "Authorization:",
                "authorization: Basic eDp5\r\nAUTHORIZATION:",
            ),
            400,
        ),
        (
            "two subprotocols with tokens",
            changed(
                "Authorization:",
                "Sec-WebSocket-Protocol: bearer, x, bearer, y\r\nAuthorization:",
            ),
            400,
        ),
        (
            "endless head",
            format!(
                "GET / HTTP/1.1\r\n{}",
                "a: b\r\n".repeat(60) + "c: " + &"d".repeat(20_000)
            ),
            431,
        ),
    ] {
        let (got, head, body) = http(stack.gateway.address, &request).await;
        assert_eq!(got, status, "{name}: {head} {body}");
    }
    assert!(
        SocketClient::request(stack.gateway.address, &good)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn full_gateway_returns_retry_after() {
    let options = GatewayOptions {
        max_sessions: 1,
        ..GatewayOptions::default()
    };
    let stack = Stack::start(quick(), options);
    let (session, token) = stack.session().await;
    let first = SocketClient::open(stack.gateway.address, &session, &token, "").await;
    assert!(first.is_ok());
    let header = format!("Authorization: Bearer {token}\r\n");
    let request = upgrade(&format!("/agent/ws/{session}"), &header);
    let (status, head, _) = http(stack.gateway.address, &request).await;
    assert_eq!(status, 503);
    assert!(head.contains("Retry-After: 1"), "{head}");
}

#[tokio::test]
async fn protocol_violations_get_close_code() {
    let options = GatewayOptions {
        max_message: 1000,
        ..GatewayOptions::default()
    };
    let stack = Stack::start(quick(), options);
    let (session, token) = stack.session().await;
    let masked = |opcode, payload: &[u8]| {
        let mut out = Vec::new();
        plimsoll_wire::websocket::append_masked_frame(&mut out, opcode, [1, 2, 3, 4], payload);
        out
    };
    let mut reserved = masked(Opcode::Text, b"{}");
    reserved[0] |= 0x40;
    for (name, bytes, code) in [
        ("unmasked", vec![0x81, 2, b'{', b'}'], 1002),
        ("reserved bit", reserved, 1002),
        ("oversized", masked(Opcode::Text, &[b' '; 1001]), 1009),
        ("not utf-8", masked(Opcode::Text, b"\"\xff\""), 1007),
        ("binary", masked(Opcode::Binary, b"{}"), 1003),
        ("bad close", masked(Opcode::Close, b"\x03"), 1002),
    ] {
        let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
            .await
            .ok()
            .unwrap();
        client.stream.write_all(&bytes).await.unwrap();
        assert_eq!(client.close_code().await, code, "{name}");
    }
}
