//! A server over HTTP/1.1 that counts the requests of each path.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// How often each path was requested.
pub(crate) type PathCounts = Arc<Mutex<BTreeMap<String, u64>>>;

/// Answers each request on a connection with two bytes, and counts its path.
fn answer_requests(connection: TcpStream, counts: &PathCounts) {
    let mut answers = connection.try_clone().expect("a socket");
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        if lines.by_ref().any(|line| line.is_empty()) {
            *counts.lock().expect("counts").entry(path).or_default() += 1;
            let _ = answers.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    }
}

/// Starts a server that runs until the end of the test. Returns its address and its counts.
pub(crate) fn count_requests() -> (SocketAddr, PathCounts) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let counts = PathCounts::default();
    let counted = Arc::clone(&counts);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let counts = Arc::clone(&counted);
            thread::spawn(move || answer_requests(connection, &counts));
        }
    });
    (address, counts)
}
