//! Host names to addresses, off the worker's thread.
//!
//! `getaddrinfo` blocks, so a helper thread calls it and wakes the worker. A literal
//! address needs no thread and is answered at once.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;

use crate::network::Token;
use crate::network::os::Waker;

pub(crate) struct Resolver {
    host: String,
    port: u16,
    waker: Waker,
    literal: Option<SocketAddr>,
    at_once: Vec<Token>,
    thread: Option<Thread>,
}

struct Thread {
    questions: mpsc::Sender<Token>,
    answers: mpsc::Receiver<(Token, io::Result<SocketAddr>)>,
}

impl Resolver {
    pub(crate) fn new(host: &str, port: u16, waker: Waker) -> Resolver {
        let literal = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .ok()
            .map(|ip| SocketAddr::new(ip, port));
        Resolver {
            host: host.to_owned(),
            port,
            waker,
            literal,
            at_once: Vec::new(),
            thread: None,
        }
    }

    pub(crate) fn ask(&mut self, token: Token) {
        if self.literal.is_some() {
            self.at_once.push(token);
            return;
        }
        let (host, port, waker) = (self.host.clone(), self.port, self.waker.clone());
        let thread = self.thread.get_or_insert_with(|| spawn(host, port, waker));
        // The thread ends only with this resolver.
        let _ = thread.questions.send(token);
    }

    /// There is an answer that nobody will be woken for.
    pub(crate) fn has_answer(&self) -> bool {
        !self.at_once.is_empty()
    }

    pub(crate) fn answer(&mut self) -> Option<(Token, io::Result<SocketAddr>)> {
        if let Some(address) = self.literal {
            return self.at_once.pop().map(|token| (token, Ok(address)));
        }
        self.thread.as_ref()?.answers.try_recv().ok()
    }
}

fn spawn(host: String, port: u16, waker: Waker) -> Thread {
    let (questions, asked) = mpsc::channel::<Token>();
    let (answer, answers) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(token) = asked.recv() {
            let result = first_address(&host, port);
            if answer.send((token, result)).is_err() {
                break;
            }
            waker.wake();
        }
    });
    Thread { questions, answers }
}

/// The first address of `host`, an IPv4 one where there is a choice: a service that
/// listens on one family only listens on that one far more often.
///
/// # Errors
/// When the name does not resolve.
pub(crate) fn first_address(host: &str, port: u16) -> io::Result<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("host name {host:?} has no address"),
        )
    })
}
