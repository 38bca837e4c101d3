//! Metrics (OpenMetrics text) and health, on a loopback address.
//!
//! A thread of its own with blocking reads: it is asked every few seconds, and must not
//! be in the way of the data.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_engine::address::Lack;
use plimsoll_engine::clock::Clock;
use plimsoll_engine::{Address, defect};
use plimsoll_protocols::serving::NotAccepted;
use plimsoll_wire::http1::{FieldSpace, RequestHead, put_response};

use super::metrics::Metrics;
use super::names::Names;
use super::{SidecarError, start_thread};
use crate::metrics::CONTENT_TYPE;

/// For a request, and for each write of its answer.
const PATIENCE: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const MAX_HEAD: usize = 8 << 10;
/// How long an upstream may take to take a connection. The request for `/ready` waits for it.
const TRIED_FOR: Duration = Duration::from_millis(500);

/// Answers until the process ends; the address with the port that was given.
pub(super) fn start(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    names: Arc<Names>,
    stop: Arc<AtomicBool>,
) -> Result<SocketAddr, SidecarError> {
    let failed = |e| SidecarError::at(format!("admin: listening on {address}"), e);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    start_thread("admin", move || {
        let (clock, mut not_accepted) = (Clock::new(), NotAccepted::default());
        for stream in listener.incoming() {
            let stream = match stream {
                Ok(stream) => stream,
                Err(e) => {
                    // Descriptors have run out, for a while.
                    not_accepted.report(&e, clock.now());
                    thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
            };
            // The next one is to be answered all the same.
            let stopping = stop.load(Ordering::Relaxed);
            let _ = defect::caught(|| answer(stream, &metrics, &names, stopping));
        }
    })?;
    Ok(bound)
}

fn answer(mut stream: TcpStream, metrics: &Metrics, names: &Names, stopping: bool) {
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let Some(path) = read_path(&mut stream) else {
        return;
    };
    let plain = |status, body: &str| (status, "text/plain; charset=utf-8", body.to_owned());
    let (status, kind, body) = match path.as_str() {
        "/metrics" => (200, CONTENT_TYPE, metrics.text()),
        "/ready" if stopping => plain(503, "draining\n"),
        "/ready" => match without_upstream(metrics, names) {
            None => plain(200, "ready\n"),
            Some((route, why)) => plain(503, &format!("route {route}: {why}\n")),
        },
        _ => plain(404, "ask for /metrics or /ready\n"),
    };
    let fields = [
        ("content-type", kind),
        ("content-length", &*body.len().to_string()),
        ("connection", "close"),
    ];
    let mut out = Vec::new();
    put_response(&mut out, status, &fields);
    out.extend_from_slice(body.as_bytes());
    let _ = stream.write_all(&out);
}

/// The path of a request whose whole head has come; `None`: it has not, or is none.
fn read_path(stream: &mut TcpStream) -> Option<String> {
    let clock = Clock::new();
    let end = clock.now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = end.duration_since(clock.now());
        // A timeout of nothing would be none at all.
        stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .ok()?;
        let got = stream.read(&mut piece).ok().filter(|got| *got > 0)?;
        head.extend_from_slice(&piece[..got]);
        let mut space = FieldSpace::new();
        if let Some(request) = RequestHead::parse(&head, MAX_HEAD, &mut space).ok()? {
            return Some(request.target.to_owned());
        }
        if clock.now() >= end {
            return None;
        }
    }
}

/// A route that none of its upstreams would take a call from, and why. An upstream is alive when a
/// connection to it is open, or when it takes one now.
fn without_upstream(metrics: &Metrics, names: &Names) -> Option<(String, String)> {
    names.routes().into_iter().find_map(|route| {
        let places = route.places();
        let is_open = |address: &Address| {
            let counters = metrics.upstream(route.route(), &address.to_string());
            counters.open.get() > 0
        };
        let mut addresses = places.iter().map(|place| &place.address);
        if addresses.clone().any(is_open) {
            return None;
        }
        let mut lack = route.lack();
        let is_alive = addresses.any(|address| {
            let connected = connect(address);
            lack = lack.or_else(|| connected.as_ref().err().and_then(Lack::of));
            connected.is_ok()
        });
        let why = match lack {
            Some(lack) => lack.to_string(),
            None => "no upstream can be reached".to_owned(),
        };
        (!is_alive).then(|| (route.route().to_owned(), why))
    })
}

fn connect(address: &Address) -> io::Result<TcpStream> {
    match address {
        Address::Tcp(address) => {
            let connected = TcpStream::connect_timeout(address, TRIED_FOR);
            connected.map_err(|e| Lack::named(e, *address))
        }
        Address::Unix(_) => address.begin(None),
    }
}
