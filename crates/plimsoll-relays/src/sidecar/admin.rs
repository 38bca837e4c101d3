//! Metrics (the Prometheus text format) and health, on a loopback address.
//!
//! A thread of its own with blocking reads: it is asked every few seconds, and must not
//! be in the way of the data.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_engine::defect;

use super::{Counters, SidecarError};

const PATIENCE: Duration = Duration::from_secs(2);

/// Answers until the process ends; the address with the port that was given.
pub(super) fn start(
    address: SocketAddr,
    counters: Arc<Vec<(String, Counters)>>,
    stop: Arc<AtomicBool>,
) -> Result<SocketAddr, SidecarError> {
    let failed = |source| SidecarError::Admin { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The next one is to be answered all the same.
            let stopping = stop.load(Ordering::Relaxed);
            let _ = defect::caught(|| answer(stream, &counters, stopping));
        }
    });
    Ok(bound)
}

fn answer(mut stream: TcpStream, counters: &[(String, Counters)], stopping: bool) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut request = [0u8; 1024];
    let Ok(got) = stream.read(&mut request) else {
        return;
    };
    let (status, body) = match request[..got].split(|byte| *byte == b' ').nth(1) {
        Some(b"/metrics") => ("200 OK", metrics(counters)),
        Some(b"/ready") if stopping => ("503 Service Unavailable", "draining\n".to_owned()),
        Some(b"/ready") => ("200 OK", "ready\n".to_owned()),
        _ => ("404 Not Found", "ask for /metrics or /ready\n".to_owned()),
    };
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}

/// What the counters are, in the order of [`Counters::all`].
const HELP: [&str; 25] = [
    "Connections taken from clients.",
    "Connections of clients that are open.",
    "Connections made to upstreams.",
    "Connections to upstreams that could not be made.",
    "Connections to upstreams that were lost.",
    "Requests from clients.",
    "Answers to them from upstreams.",
    "Requests that want no answer.",
    "Requests answered by the sidecar: too many at once.",
    "Requests answered by the sidecar: no upstream could be reached.",
    "Requests answered by the sidecar: no answer in time.",
    "Requests answered by the sidecar: the upstream's connection was lost.",
    "HTTP/2 requests that their clients reset.",
    "HTTP/2 requests that upstreams reset, or had not looked at.",
    "Answers that nobody waited for.",
    "Connections that carried what is not their protocol.",
    "TLS handshakes that failed.",
    "Bytes from clients.",
    "Bytes from upstreams.",
    "Times an upstream was left out because its calls failed.",
    "Host names that could not be looked up.",
    "Lines that the access log had no room for.",
    "Certificates that were loaded anew.",
    "Certificates that could not be loaded anew.",
    "1: the upstream's certificate is not checked.",
];

fn metrics(counters: &[(String, Counters)]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# HELP plimsoll_sidecar_panics_total Defects of the sidecar, of all routes.\n\
         # TYPE plimsoll_sidecar_panics_total counter\n\
         plimsoll_sidecar_panics_total {}",
        defect::seen()
    );
    let names = Counters::default().all().map(|(name, _)| name);
    for (i, (name, help)) in names.iter().zip(HELP).enumerate() {
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        let _ = writeln!(text, "# HELP plimsoll_sidecar_{name} {help}");
        let _ = writeln!(text, "# TYPE plimsoll_sidecar_{name} {kind}");
        for (route, counters) in counters {
            let route = route
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let value = counters.all()[i].1;
            let _ = writeln!(text, "plimsoll_sidecar_{name}{{route=\"{route}\"}} {value}");
        }
    }
    text
}
