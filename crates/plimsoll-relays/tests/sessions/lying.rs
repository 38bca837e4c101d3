//! Servers that say they are Redis and send more than they were asked for: what they can make the gateway
//! hold is bounded.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use plimsoll_relays::bus::{Bus, RedisOptions};

/// More than the sockets between the two hold, and far less than is sent.
const MAX_TAKEN: usize = 96 << 20;
/// On every connection.
const SENT: usize = 512 << 20;

/// What a server sends on connections: once, and then again and again.
type Lie = (&'static str, &'static [u8], &'static [u8]);

const LIES: [Lie; 4] = [
    ("a long string", b"$2000000000\r\n", b"x"),
    ("a line without an end", b"+", b"x"),
    ("an error without an end", b"-ERR ", b"x"),
    ("a long list", b"*2000000000\r\n", b"_\r\n"),
];

/// Answers greetings with a lie. Returns its port, how many bytes a connection has taken at most, and how
/// many connections are over.
fn liar((_, once, again): Lie) -> (u16, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (taken, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (most, ends) = (Arc::clone(&taken), Arc::clone(&ended));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (most, ends) = (Arc::clone(&most), Arc::clone(&ends));
            thread::spawn(move || {
                let sent = lie(stream.unwrap(), once, again);
                most.fetch_max(sent, Ordering::SeqCst);
                ends.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    (port, taken, ended)
}

/// The bytes that were sent before the other end closed the connection.
fn lie(mut stream: TcpStream, once: &[u8], again: &[u8]) -> usize {
    if stream.read(&mut [0; 1024]).is_err() || stream.write_all(once).is_err() {
        return 0;
    }
    let more = again.repeat((64 << 10) / again.len());
    let mut sent = 0;
    while sent < SENT {
        match stream.write(&more) {
            Ok(part @ 1..) => sent += part,
            _ => break,
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_a_lying_redis_are_bounded() {
    for lie in LIES {
        let (port, taken, ended) = liar(lie);
        for url in ["redis", "redis-cluster"] {
            let address = format!("{url}://127.0.0.1:{port}").parse().unwrap();
            let before = ended.load(Ordering::SeqCst);
            let bus = Bus::redis(address, RedisOptions::default());
            while ended.load(Ordering::SeqCst) < before + 3 {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            drop(bus);
            let most = taken.load(Ordering::SeqCst);
            assert!(most < MAX_TAKEN, "{}, {url}: {most} bytes", lie.0);
        }
    }
}
