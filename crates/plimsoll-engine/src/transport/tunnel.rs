//! The handshake with a forward proxy: CONNECT (RFC 9110 §9.3.6) and SOCKS5 (RFC 1928, RFC 1929), as a state
//! machine without I/O.
//!
//! Invariant: only the proxy's answers are consumed; later bytes belong to the target. The network performs this
//! handshake before it reports a connection as established.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use plimsoll_model::plan::{ForwardProxy, ProxyKind, Target};

use super::address::{Address, LocalResourceError};

/// Maximum length of a proxy's answer in bytes.
pub const MAX_ANSWER_BYTES: usize = 16 << 10;

/// A proxy, and the target to reach through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    proxy: ForwardProxy,
    /// The host to which the proxy connects: an address, or a name that the proxy resolves.
    host: String,
    port: u16,
}

impl Tunnel {
    /// Returns the tunnel to `target`; `None` if `target` is reached without a proxy.
    pub fn for_target(target: &Target) -> Option<Arc<Tunnel>> {
        let proxy = target.proxy.clone()?;
        let given = target.addresses.first().map(IpAddr::to_string);
        Some(Arc::new(Tunnel {
            proxy,
            host: given.unwrap_or_else(|| target.host.clone()),
            port: target.port,
        }))
    }

    /// Returns `host:port` as in a request line, with brackets around IPv6 addresses.
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// The proxy's answer that is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedReply {
    /// The head of the response to CONNECT.
    Head,
    /// The authentication method that the SOCKS5 proxy chose.
    Method,
    /// The result of the SOCKS5 login.
    Login,
    /// The result of the SOCKS5 connect request.
    Reply,
}

/// The proxy handshake of one connection.
#[derive(Debug)]
pub struct ProxyHandshake {
    tunnel: Arc<Tunnel>,
    expected: ExpectedReply,
}

impl ProxyHandshake {
    /// Begins a handshake and appends its first request to `out`.
    pub fn begin(tunnel: Arc<Tunnel>, out: &mut Vec<u8>) -> ProxyHandshake {
        let awaited = match tunnel.proxy.kind {
            ProxyKind::Connect => {
                let authority = tunnel.authority();
                let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
                out.extend_from_slice(head.as_bytes());
                if let Some(credentials) = &tunnel.proxy.credentials {
                    let line = format!(
                        "Proxy-Authorization: {}\r\n",
                        credentials.basic_auth_value()
                    );
                    out.extend_from_slice(line.as_bytes());
                }
                out.extend_from_slice(b"\r\n");
                ExpectedReply::Head
            }
            ProxyKind::Socks5 => {
                match tunnel.proxy.credentials {
                    None => out.extend_from_slice(&[5, 1, 0]),
                    Some(_) => out.extend_from_slice(&[5, 2, 0, 2]),
                }
                ExpectedReply::Method
            }
        };
        ProxyHandshake {
            tunnel,
            expected: awaited,
        }
    }

    /// Returns `host:port` of the proxy.
    pub fn proxy_address(&self) -> String {
        let proxy = &self.tunnel.proxy;
        format!("{}:{}", proxy.host, proxy.port)
    }

    /// Processes the received bytes that have not been consumed yet. Returns how many of them to consume, and whether
    /// the connection to the target is then established. Appends further requests to `out`.
    ///
    /// # Errors
    /// Returns an error if the proxy refuses, cannot connect to the target, or does not speak the protocol.
    pub fn advance(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, bool)> {
        self.process_replies(bytes, out)
            .map_err(|e| proxy_error(&e))
    }

    fn process_replies(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, bool)> {
        let mut taken = 0;
        loop {
            let Some((size, is_open)) = self.process_reply(&bytes[taken..], out)? else {
                if bytes.len() - taken >= MAX_ANSWER_BYTES {
                    return Err(protocol_error("its answer is too long"));
                }
                return Ok((taken, false));
            };
            taken += size;
            if is_open {
                return Ok((taken, true));
            }
        }
    }

    /// Processes one complete answer; `None` until it is complete.
    fn process_reply(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> io::Result<Option<(usize, bool)>> {
        match self.expected {
            ExpectedReply::Head => parse_connect_response(bytes),
            ExpectedReply::Method => match bytes {
                [] => Ok(None),
                [5] => Ok(None),
                [5, 0, ..] => {
                    self.request_connect(out)?;
                    Ok(Some((2, false)))
                }
                [5, 2, ..] if self.tunnel.proxy.credentials.is_some() => {
                    self.request_login(out);
                    Ok(Some((2, false)))
                }
                [5, ..] => Err(permission_error(
                    "it requires another authentication method (SOCKS5)",
                )),
                _ => Err(protocol_error("it does not speak SOCKS5")),
            },
            ExpectedReply::Login => match bytes {
                [] | [_] => Ok(None),
                [_, 0, ..] => {
                    self.request_connect(out)?;
                    Ok(Some((2, false)))
                }
                _ => Err(permission_error(
                    "it rejected the user name or the password",
                )),
            },
            ExpectedReply::Reply => {
                let size = match bytes {
                    [5, 0, _, 1, ..] => 4 + 4 + 2,
                    [5, 0, _, 4, ..] => 4 + 16 + 2,
                    [5, 0, _, 3, length, ..] => 5 + usize::from(*length) + 2,
                    [5, 0, _, 3] => return Ok(None),
                    [5, 0, _, _, ..] => return Err(protocol_error("it does not speak SOCKS5")),
                    [5, why, ..] if *why != 0 => return Err(socks5_reply_error(*why)),
                    [] | [5] | [5, 0] | [5, 0, _] => return Ok(None),
                    _ => return Err(protocol_error("it does not speak SOCKS5")),
                };
                Ok((bytes.len() >= size).then_some((size, true)))
            }
        }
    }

    /// Appends the login request (RFC 1929 §2).
    fn request_login(&mut self, out: &mut Vec<u8>) {
        self.expected = ExpectedReply::Login;
        let Some(credentials) = &self.tunnel.proxy.credentials else {
            return;
        };
        out.push(1);
        for text in [&credentials.user, &credentials.password] {
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }

    /// Appends the connect request (RFC 1928 §4).
    fn request_connect(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.expected = ExpectedReply::Reply;
        let Tunnel { host, port, .. } = &*self.tunnel;
        out.extend_from_slice(&[5, 1, 0]);
        match host.parse() {
            Ok(IpAddr::V4(ip)) => {
                out.push(1);
                out.extend_from_slice(&ip.octets());
            }
            Ok(IpAddr::V6(ip)) => {
                out.push(4);
                out.extend_from_slice(&ip.octets());
            }
            Err(_) => {
                let length = u8::try_from(host.len());
                let length =
                    length.map_err(|_| protocol_error("the host name is too long for SOCKS5"))?;
                out.extend_from_slice(&[3, length]);
                out.extend_from_slice(host.as_bytes());
            }
        }
        out.extend_from_slice(&port.to_be_bytes());
        Ok(())
    }
}

/// Parses the response to CONNECT; returns its size and whether the tunnel is open.
fn parse_connect_response(bytes: &[u8]) -> io::Result<Option<(usize, bool)>> {
    let begins = &b"HTTP/1."[..];
    if !bytes.starts_with(&begins[..bytes.len().min(begins.len())]) {
        return Err(protocol_error("it does not speak HTTP"));
    }
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let Some(end) = end.map(|at| at + 4) else {
        return Ok(None);
    };
    let line = bytes.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let status = line
        .get(9..12)
        .and_then(|digits| digits.parse::<u16>().ok());
    let shown: String = line
        .chars()
        .skip(9)
        .filter(|c| !c.is_control())
        .take(80)
        .collect();
    match status {
        Some(100..200) => Ok(Some((end, false))),
        Some(200..300) => Ok(Some((end, true))),
        Some(401 | 403 | 407) => Err(permission_error(&format!("it answered {shown}"))),
        _ => Err(protocol_error(&format!("it answered {shown}"))),
    }
}

/// Returns the error for a SOCKS5 reply code (RFC 1928 §6).
fn socks5_reply_error(code: u8) -> io::Error {
    use io::ErrorKind as Kind;
    let (kind, why) = match code {
        1 => (Kind::Other, "general failure"),
        2 => (
            Kind::PermissionDenied,
            "its rules don't allow the connection",
        ),
        3 => (
            Kind::NetworkUnreachable,
            "the target's network is unreachable",
        ),
        4 => (Kind::HostUnreachable, "the target's host is unreachable"),
        5 => (Kind::ConnectionRefused, "the target refused the connection"),
        6 => (Kind::TimedOut, "the target did not answer"),
        7 => (Kind::Other, "it does not support CONNECT"),
        8 => (Kind::Other, "it does not support addresses of this kind"),
        _ => (Kind::Other, "it gave no reason"),
    };
    io::Error::new(kind, format!("{why} (SOCKS5 reply {code})"))
}

/// Adds to an error's message that it occurred on the connection to the proxy.
pub fn proxy_error(e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("the proxy: {e}"))
}

/// Describes why connecting to `address`, which is a proxy's, failed.
pub fn describe_proxy_failure(address: &Address, e: &io::Error) -> String {
    let unreached = address.describe_failure(e);
    // The other errors name the proxy, or a shortage of this machine.
    if e.get_ref().is_none() {
        format!("the proxy (load.proxy): {unreached}")
    } else {
        unreached
    }
}

/// Returns whether the proxy is at fault for an error of connecting through it, and neither this machine nor the target
/// behind the proxy.
pub fn is_failure_of_proxy(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let is_of_target = matches!(
        e.kind(),
        Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::TimedOut
    );
    // A SOCKS5 proxy answers with these kinds if it could not connect to the target.
    let is_answer_about_target = e.get_ref().is_some() && is_of_target;
    LocalResourceError::from_io_error(e).is_none() && !is_answer_about_target
}

fn protocol_error(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

fn permission_error(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_model::plan::ProxyCredentials;

    fn opening(kind: ProxyKind, target: &str, user: Option<&str>) -> (ProxyHandshake, Vec<u8>) {
        let (host, port) = target.rsplit_once(':').unwrap();
        let host = host.trim_matches(['[', ']']);
        let mut target = Target::new_tcp(target, host, port.parse().unwrap());
        target.proxy = Some(ForwardProxy {
            kind,
            host: "p".to_owned(),
            port: 1,
            credentials: user.map(|user| ProxyCredentials {
                user: user.to_owned(),
                password: "pw".to_owned(),
            }),
        });
        let mut out = Vec::new();
        let opening = ProxyHandshake::begin(Tunnel::for_target(&target).unwrap(), &mut out);
        (opening, out)
    }

    /// Passes answers to the handshake in pieces of `step` bytes; returns what it sent, and the bytes left
    /// for the target.
    fn run_handshake(
        (mut opening, mut sent): (ProxyHandshake, Vec<u8>),
        answers: &[u8],
        step: usize,
    ) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (mut there, mut left): (Vec<u8>, _) = (Vec::new(), answers);
        loop {
            let piece = step.min(left.len());
            if piece == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ended"));
            }
            there.extend_from_slice(&left[..piece]);
            left = &left[piece..];
            let (taken, is_open) = opening.advance(&there, &mut sent)?;
            there.drain(..taken);
            if is_open {
                there.extend_from_slice(left);
                return Ok((sent, there));
            }
        }
    }

    #[test]
    fn split_proxy_replies_are_consumed_exactly() {
        let socks = |host: &[u8]| [&[5, 1, 0, 5, 1, 0][..], host, &[0, 80]].concat();
        let reply = [5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 9, 9];
        for (kind, target, user, answers, expected) in [
            (
                ProxyKind::Connect,
                "a.test:80",
                None,
                b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n".to_vec(),
                b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n".to_vec(),
            ),
            (
                ProxyKind::Connect,
                "[::1]:80",
                Some("me"),
                b"HTTP/1.0 200 OK\r\n\r\n".to_vec(),
                b"CONNECT [::1]:80 HTTP/1.1\r\nHost: [::1]:80\r\nProxy-Authorization: Basic bWU6cHc=\r\n\r\n".to_vec(),
            ),
            (ProxyKind::Socks5, "a.test:80", None, reply.to_vec(), socks(b"\x03\x06a.test")),
            (
                ProxyKind::Socks5,
                "127.0.0.1:80",
                None,
                [&[5, 0, 5, 0, 0, 3, 3][..], b"abc", &[1, 2]].concat(),
                socks(&[1, 127, 0, 0, 1]),
            ),
            (
                ProxyKind::Socks5,
                "a:80",
                Some("me"),
                [&[5, 2, 1, 0][..], &reply[2..]].concat(),
                b"\x05\x02\x00\x02\x01\x02me\x02pw\x05\x01\x00\x03\x01a\x00\x50".to_vec(),
            ),
        ] {
            let all = [&answers[..], b"the target's"].concat();
            for step in 1..=all.len() {
                let (sent, left) = run_handshake(opening(kind, target, user), &all, step).unwrap();
                assert_eq!(sent, expected, "{target} in pieces of {step}");
                assert_eq!(left, b"the target's");
            }
        }
    }

    #[test]
    fn proxy_refusals_map_to_specific_errors() {
        use io::ErrorKind as Kind;
        for (kind, user, answers, expected, text) in [
            (
                ProxyKind::Connect,
                None,
                &b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..],
                Kind::PermissionDenied,
                "it answered 407 Proxy",
            ),
            (
                ProxyKind::Connect,
                None,
                b"HTTP/1.1 503 Busy\r\n\r\n",
                Kind::Other,
                "it answered 503 Busy",
            ),
            (
                ProxyKind::Connect,
                None,
                b"SSH-2.0-x\r\n",
                Kind::Other,
                "does not speak HTTP",
            ),
            (
                ProxyKind::Socks5,
                None,
                &[5, 0xff],
                Kind::PermissionDenied,
                "another authentication method",
            ),
            (
                ProxyKind::Socks5,
                None,
                &[5, 2],
                Kind::PermissionDenied,
                "another authentication method",
            ),
            (
                ProxyKind::Socks5,
                Some("x"),
                &[5, 2, 1, 1],
                Kind::PermissionDenied,
                "rejected the user name",
            ),
            (
                ProxyKind::Socks5,
                None,
                &[5, 0, 5, 5, 0, 1, 0, 0, 0, 0, 0, 0],
                Kind::ConnectionRefused,
                "SOCKS5 reply 5",
            ),
            (
                ProxyKind::Socks5,
                None,
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                Kind::Other,
                "does not speak SOCKS5",
            ),
            (
                ProxyKind::Socks5,
                None,
                &[5, 0, 5, 0],
                Kind::UnexpectedEof,
                "ended",
            ),
        ] {
            for step in 1..=answers.len() {
                let refused = run_handshake(opening(kind, "a:80", user), answers, step);
                let error = refused.expect_err(text);
                assert_eq!(error.kind(), expected, "{error}");
                assert!(error.to_string().contains(text), "{error}");
            }
        }
        let endless = [&b"HTTP/1.1 200 OK\r\n"[..], &vec![b'x'; MAX_ANSWER_BYTES]].concat();
        let refused = run_handshake(opening(ProxyKind::Connect, "a:80", None), &endless, 100);
        assert!(refused.is_err());
    }
}
