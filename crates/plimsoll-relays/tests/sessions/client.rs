//! A minimal WebSocket client that reports everything it receives.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use plimsoll_wire::websocket::{
    Opcode, ReaderRole, WebSocketMessage, WebSocketReader, append_masked_frame,
};

/// Upper bound for every wait in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Sends one request and reads the response until the end: status, head and body.
pub(crate) async fn http(to: SocketAddr, request: &str) -> (u16, String, String) {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // A refused upload may be reset after the response.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    };
    let answer = timeout(LIMIT, exchange).await.expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap_or(0);
    (status, head.to_owned(), body.to_owned())
}

pub(crate) async fn post(to: SocketAddr, path: &str) -> (u16, Value) {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let (status, _, body) = http(to, &request).await;
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// Returns an upgrade request with these headers in addition to the usual ones.
pub(crate) fn upgrade(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

/// Something that was received.
#[derive(Debug, PartialEq)]
pub(crate) enum SocketEvent {
    Frame(Value),
    Close(u16),
    /// The connection ended without a Close.
    End,
}

pub(crate) struct SocketClient {
    pub(crate) stream: TcpStream,
    reader: WebSocketReader,
    came: VecDeque<SocketEvent>,
    pub(crate) answer_pings: bool,
}

impl SocketClient {
    /// Opens a session's socket; `Err` is the HTTP status with which it was refused.
    pub(crate) async fn open(
        gateway: SocketAddr,
        session: &str,
        token: &str,
        query: &str,
    ) -> Result<SocketClient, u16> {
        let path = format!("/agent/ws/{session}{query}");
        let headers = format!("Authorization: Bearer {token}\r\n");
        SocketClient::request(gateway, &upgrade(&path, &headers)).await
    }

    pub(crate) async fn request(gateway: SocketAddr, request: &str) -> Result<SocketClient, u16> {
        let Ok(mut stream) = TcpStream::connect(gateway).await else {
            return Err(0);
        };
        if stream.write_all(request.as_bytes()).await.is_err() {
            return Err(0);
        }
        let mut head = Vec::new();
        let end = loop {
            if let Some(at) = head.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            let read = timeout(LIMIT, stream.read_buf(&mut head))
                .await
                .expect("an answer");
            if read.unwrap_or(0) == 0 {
                return Err(0);
            }
        };
        let text = String::from_utf8_lossy(&head[..end]).into_owned();
        let status: u16 = text.split(' ').nth(1).unwrap().parse().unwrap();
        if status != 101 {
            return Err(status);
        }
        assert!(
            text.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            "{text}"
        );
        let mut client = SocketClient {
            stream,
            reader: WebSocketReader::new(ReaderRole::Client, 1 << 20),
            came: VecDeque::new(),
            answer_pings: true,
        };
        let rest = head[end..].to_vec();
        client.take(&rest).await;
        Ok(client)
    }

    pub(crate) async fn send(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut out = Vec::new();
        append_masked_frame(&mut out, opcode, [9, 8, 7, 6], payload);
        // The gateway may have closed already; what it sent must still be read.
        let _ = self.stream.write_all(&out).await;
    }

    async fn take(&mut self, bytes: &[u8]) {
        let mut pongs = Vec::new();
        let came = &mut self.came;
        self.reader
            .read(bytes, |message| {
                match message {
                    WebSocketMessage::Text(text) => {
                        came.push_back(SocketEvent::Frame(serde_json::from_str(text).unwrap()));
                    }
                    WebSocketMessage::Close { code, .. } => {
                        came.push_back(SocketEvent::Close(code))
                    }
                    WebSocketMessage::Ping(payload) => pongs.push(payload.to_vec()),
                    other => panic!("unexpected {other:?}"),
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        for pong in pongs {
            if self.answer_pings {
                self.send(Opcode::Pong, &pong).await;
            }
        }
    }

    pub(crate) async fn next(&mut self) -> SocketEvent {
        loop {
            if let Some(came) = self.came.pop_front() {
                return came;
            }
            let mut bytes = vec![0; 16 * 1024];
            let read = timeout(LIMIT, self.stream.read(&mut bytes)).await;
            match read.expect("something from the gateway in time") {
                Ok(0) | Err(_) => return SocketEvent::End,
                Ok(n) => self.take(&bytes[..n]).await,
            }
        }
    }

    pub(crate) async fn frame(&mut self) -> Value {
        match self.next().await {
            SocketEvent::Frame(frame) => frame,
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    /// Reads until the end of a run; returns all its frames.
    pub(crate) async fn until_done(&mut self) -> Vec<Value> {
        let mut frames = Vec::new();
        loop {
            let frame = self.frame().await;
            let done = frame["type"] == "done";
            frames.push(frame);
            if done {
                return frames;
            }
        }
    }

    /// Skips frames until the connection ends; returns the close code.
    pub(crate) async fn close_code(&mut self) -> u16 {
        loop {
            match self.next().await {
                SocketEvent::Frame(_) => {}
                SocketEvent::Close(code) => return code,
                SocketEvent::End => return 1006,
            }
        }
    }
}

pub(crate) fn numbers(frames: &[Value]) -> Vec<u64> {
    frames.iter().filter_map(|f| f["seq"].as_u64()).collect()
}
