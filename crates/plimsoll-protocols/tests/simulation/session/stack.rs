//! A simulated API and sockets that serve sessions, and are killed or misbehave deliberately.

use super::*;

/// Draws a number in a range from a seed and a name, always the same.
pub(crate) fn choose(seed: u64, name: u64, from: u64, to: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(name << 32 | name);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    from + (z ^ (z >> 31)) % (to - from + 1)
}

/// The log of a session depends only on when its runs started: frame `n` exists once its time has come,
/// whoever is connected.
#[derive(Default)]
pub(crate) struct SessionLog {
    pub(crate) runs: Vec<Time>,
}

impl SessionLog {
    fn frame_time(&self, seq: u64, pace: Duration) -> Option<Time> {
        let run = (seq - 1) / (TOKENS + 1);
        let began = *self.runs.get(usize::try_from(run).unwrap())?;
        Some(began + pace * u32::try_from((seq - 1) % (TOKENS + 1) + 1).unwrap())
    }

    fn frame(seq: u64) -> String {
        let run = (seq - 1) / (TOKENS + 1) * (TOKENS + 1) + 1;
        if seq.is_multiple_of(TOKENS + 1) {
            return format!(
                r#"{{"type":"done","content":"","seq":{seq},"run":{run},"epoch":5,"tokens":{TOKENS},"finish":"stop"}}"#
            );
        }
        format!(r#"{{"type":"token","content":"w ","seq":{seq},"run":{run},"epoch":5}}"#)
    }
}

/// The kind of a connection, by its first bytes.
pub(crate) enum ConnectionKind {
    Unknown(Vec<u8>),
    Socket {
        session: String,
        last: u64,
        reader: WebSocketReader,
    },
}

/// How the gateway's sockets misbehave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StackFault {
    Nothing,
    /// The API closes each connection as soon as it is up.
    ApiCloses,
    /// The API responds as in HTTP/1.0: the end of the connection ends a response.
    Unframed,
    /// The upgrade is answered with 503.
    UpgradeRefused,
    /// The socket is opened, and closed at once with code 1012.
    SocketCloses,
    /// A frame that is not JSON, and nothing after it.
    Garbage,
    Binary,
    /// Pings whose pongs are not read, for [`FLOOD_DURATION`].
    Flood,
}

pub(crate) const PINGS: usize = 1 << 20;
pub(crate) const FLOOD_DURATION: Duration = Duration::from_secs(2);

/// The API, the gateway, and the process that kills sockets.
pub(crate) struct Stack {
    pub(crate) fault: StackFault,
    /// Bytes that clients read from sockets while the server read nothing from them.
    pub(crate) taken_unread: usize,
    pub(crate) unread: BTreeSet<SimulatedPeerId>,
    pub(crate) pongs: usize,
    pub(crate) seed: u64,
    pub(crate) pace: Duration,
    /// The probability of killing the socket before a frame, in millionths.
    pub(crate) kill: u64,
    pub(crate) sessions: BTreeMap<String, SessionLog>,
    pub(crate) connections: BTreeMap<SimulatedPeerId, ConnectionKind>,
    pub(crate) decided: u64,
    pub(crate) kills: u64,
}

impl Stack {
    /// Creates a stack whose pace and kills depend on the seed.
    pub(crate) fn new(seed: u64, fault: StackFault) -> Stack {
        Stack {
            fault,
            taken_unread: 0,
            unread: BTreeSet::new(),
            pongs: 0,
            seed,
            pace: Duration::from_millis(choose(seed, 9, 0, 30)),
            kill: if fault == StackFault::Nothing {
                choose(seed, 10, 0, 60_000)
            } else {
                0
            },
            sessions: BTreeMap::new(),
            connections: BTreeMap::new(),
            decided: 0,
            kills: 0,
        }
    }

    fn draw_chance(&mut self, of_a_million: u64) -> bool {
        self.decided += 1;
        choose(self.seed, 1_000 + self.decided, 0, 999_999) < of_a_million
    }

    fn answer(&mut self, head: &str, now: Time) -> String {
        let path = head.split(' ').nth(1).unwrap();
        let body = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "session", "create"] => {
                let id = format!("s{}", self.sessions.len());
                self.sessions.insert(id.clone(), SessionLog::default());
                format!(r#"{{"session_id":"{id}","token":"t-{id}"}}"#)
            }
            ["", "session", id, "run"] => {
                let log = self.sessions.get_mut(id).expect("a session of ours");
                log.runs.push(now);
                let run = (log.runs.len() as u64 - 1) * (TOKENS + 1) + 1;
                format!(r#"{{"run":{run},"tokens":{TOKENS},"epoch":5}}"#)
            }
            ["", "session", _, "close"] => r#"{"closed":true}"#.to_owned(),
            _ => panic!("a request for {path}"),
        };
        match self.fault {
            StackFault::Unframed => format!("HTTP/1.0 200 OK\r\n\r\n{body}"),
            _ => format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
        }
    }

    /// Sends the due frames to a socket, and kills it at random.
    fn push(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        let mut out = Vec::new();
        loop {
            let Some(ConnectionKind::Socket { session, last, .. }) =
                self.connections.get_mut(&peer)
            else {
                return;
            };
            let (next, session) = (*last + 1, session.clone());
            let due = self.sessions[&session].frame_time(next, self.pace);
            if due.is_none_or(|due| due > now) {
                break;
            }
            append_frame(&mut out, Opcode::Text, SessionLog::frame(next).as_bytes());
            if let Some(ConnectionKind::Socket { last, .. }) = self.connections.get_mut(&peer) {
                *last = next;
            }
            if self.draw_chance(self.kill) {
                // The socket is killed within a frame, at its end, or with a close frame.
                self.kills += 1;
                match self.decided % 3 {
                    0 => out.truncate(out.len() - 7),
                    1 => {}
                    _ => {
                        let payload = 1012u16.to_be_bytes();
                        append_frame(&mut out, Opcode::Close, &payload);
                    }
                }
                actions.push(ServerAction::Send(out));
                actions.push(if self.decided.is_multiple_of(2) {
                    ServerAction::Close
                } else {
                    ServerAction::Reset
                });
                self.connections.remove(&peer);
                return;
            }
        }
        if !out.is_empty() {
            actions.push(ServerAction::Send(out));
        }
    }
}

impl SimulatedServer for Stack {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        self.connections
            .insert(peer, ConnectionKind::Unknown(Vec::new()));
        if self.fault == StackFault::ApiCloses {
            actions.push(ServerAction::Close);
        }
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let input = match self.connections.get_mut(&peer) {
            None => return,
            Some(ConnectionKind::Unknown(input)) => {
                input.extend_from_slice(bytes);
                input
            }
            Some(ConnectionKind::Socket { reader, .. }) => {
                let pongs = &mut self.pongs;
                let read = reader.read(bytes, |message| {
                    assert!(!matches!(
                        message,
                        WebSocketMessage::Text(_) | WebSocketMessage::Binary(_)
                    ));
                    *pongs += usize::from(matches!(message, WebSocketMessage::Pong(_)));
                    ControlFlow::Continue(())
                });
                assert_eq!(read, Ok(()), "the client breaks the protocol");
                return;
            }
        };
        let text = String::from_utf8(input.clone()).unwrap();
        // A run's request has a body, and it is a JSON object.
        let whole = match text.split_once("\r\n\r\n") {
            Some((head, body)) => !head.contains("/run ") || body.ends_with('}'),
            None => false,
        };
        if !whole {
            return;
        }
        input.clear();
        if text.starts_with("POST") {
            let answer = self.answer(&text, now);
            actions.push(ServerAction::Send(answer.into_bytes()));
            if self.fault == StackFault::Unframed {
                actions.push(ServerAction::Close);
            }
            return;
        }
        if self.fault == StackFault::UpgradeRefused {
            let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            return actions.push(ServerAction::Send(answer.to_vec()));
        }
        let path = text.split(' ').nth(1).unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let session = path.strip_prefix("/agent/ws/").unwrap().to_owned();
        let field = |wanted: &str| {
            let fields = text.lines().filter_map(|line| line.split_once(": "));
            let mut named = fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            named.next().unwrap().1
        };
        assert_eq!(field("authorization"), format!("Bearer t-{session}"));
        let after = query.split('&').find_map(|p| p.strip_prefix("after="));
        let last: u64 = after.map_or(0, |after| after.parse().unwrap());
        let key = field("sec-websocket-key");
        let mut out = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            derive_accept_key(key.as_bytes())
        )
        .into_bytes();
        if after.is_some() {
            append_frame(
                &mut out,
                Opcode::Text,
                br#"{"type":"resumed","resumed":true}"#,
            );
        }
        match self.fault {
            StackFault::Nothing
            | StackFault::Unframed
            | StackFault::UpgradeRefused
            | StackFault::ApiCloses => {}
            StackFault::Garbage => append_frame(&mut out, Opcode::Text, b"nonsense"),
            StackFault::Binary => append_frame(&mut out, Opcode::Binary, b"x"),
            StackFault::SocketCloses => {
                append_frame(&mut out, Opcode::Close, &1012u16.to_be_bytes())
            }
            StackFault::Flood => {
                for _ in 0..PINGS {
                    append_frame(&mut out, Opcode::Ping, b"");
                }
                self.unread.insert(peer);
                actions.push(ServerAction::StopReading);
            }
        }
        actions.push(ServerAction::Send(out));
        if self.fault == StackFault::SocketCloses {
            actions.push(ServerAction::Close);
        }
        let kind = ConnectionKind::Socket {
            session,
            last,
            reader: WebSocketReader::new(ReaderRole::Server, 1 << 16),
        };
        self.connections.insert(peer, kind);
        // Due frames are polled periodically, since a run may start at any time.
        let after = match self.fault {
            StackFault::Flood => FLOOD_DURATION,
            StackFault::Nothing | StackFault::Unframed => POLL_INTERVAL,
            // Nothing more is sent.
            _ => return,
        };
        actions.push(ServerAction::Timer { after, tag: 0 });
    }

    fn on_client_read(&mut self, peer: SimulatedPeerId, bytes: usize) {
        if self.unread.contains(&peer) {
            self.taken_unread += bytes;
        }
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.unread.remove(&peer) {
            actions.push(ServerAction::ResumeReading);
        }
        self.push(peer, now, actions);
        if self.connections.contains_key(&peer) {
            let after = POLL_INTERVAL;
            actions.push(ServerAction::Timer { after, tag });
        }
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.connections.remove(&peer);
    }
}
