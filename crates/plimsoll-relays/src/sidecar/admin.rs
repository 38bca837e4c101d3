//! Metrics (OpenMetrics text) and health, on a loopback address.
//!
//! A thread of its own with blocking reads: it is asked every few seconds, and must not
//! be in the way of the data.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_engine::defect;

use super::SidecarError;
use super::metrics::Metrics;
use crate::metrics::CONTENT_TYPE;

const PATIENCE: Duration = Duration::from_secs(2);

/// Answers until the process ends; the address with the port that was given.
pub(super) fn start(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: Arc<AtomicBool>,
) -> Result<SocketAddr, SidecarError> {
    let failed = |source| SidecarError::Admin { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The next one is to be answered all the same.
            let stopping = stop.load(Ordering::Relaxed);
            let _ = defect::caught(|| answer(stream, &metrics, stopping));
        }
    });
    Ok(bound)
}

fn answer(mut stream: TcpStream, metrics: &Metrics, stopping: bool) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut request = [0u8; 1024];
    let Ok(got) = stream.read(&mut request) else {
        return;
    };
    let plain = |status, body: &str| (status, "text/plain; charset=utf-8", body.to_owned());
    let (status, kind, body) = match request[..got].split(|byte| *byte == b' ').nth(1) {
        Some(b"/metrics") => ("200 OK", CONTENT_TYPE, metrics.text()),
        Some(b"/ready") if stopping => plain("503 Service Unavailable", "draining\n"),
        Some(b"/ready") => plain("200 OK", "ready\n"),
        _ => plain("404 Not Found", "ask for /metrics or /ready\n"),
    };
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}
