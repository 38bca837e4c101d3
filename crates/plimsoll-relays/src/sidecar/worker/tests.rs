//! Tests of single loop iterations: what happens to calls between two writes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use plimsoll_protocols::interface::relayed::Watchdog;
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{DEFAULT_MAX_FRAME_BYTES, PREFACE, kind, split_frame, write};

use super::super::config::SidecarConfig;
use super::super::setup::prepare;
use super::*;

/// Returns a worker with one route, and the address that the route listens on.
fn worker_before(upstream: SocketAddr) -> (Worker, SocketAddr) {
    let config = format!(
        "[[route]]\nname = \"r\"\nprotocol = \"grpc\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"{upstream}\"]\n"
    );
    let config = SidecarConfig::parse(&config).unwrap();
    let metrics = Arc::new(SidecarMetrics::new());
    let watchdog = Watchdog::default();
    let (mut setups, routes) = prepare(&config, &[], &metrics, &watchdog, None).unwrap();
    let shared = WorkerContext {
        metrics,
        stop: Arc::default(),
        clock: Clock::new(),
    };
    let mut worker = Worker::new(setups.remove(0), shared).unwrap();
    worker.read_mailbox(worker.shared.clock.now());
    (worker, routes[0].address.tcp_address().unwrap())
}

impl Worker {
    /// Handles socket events until the condition holds, without writing.
    fn read_until(&mut self, mut is_so: impl FnMut(&mut Worker) -> bool) {
        let mut events = PollEvents::default();
        while !is_so(self) {
            let wait = Some(Duration::from_millis(1));
            self.poller.wait(wait, &mut events).unwrap();
            let now = self.shared.clock.now();
            for event in events.sockets() {
                self.dispatch_event(event, now);
            }
        }
    }

    /// Handles socket events and writes until the condition holds.
    fn run_until(&mut self, mut is_so: impl FnMut() -> bool) {
        self.read_until(|worker| {
            worker.flush_dirty_connections(worker.shared.clock.now());
            is_so()
        });
    }

    fn accept_from(&mut self, listener: &TcpListener) -> TcpStream {
        listener.set_nonblocking(true).unwrap();
        let mut accepted = None;
        self.run_until(|| {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (mut upstream, _) = accepted.unwrap();
        upstream.set_nonblocking(true).unwrap();
        let mut greeting = Vec::new();
        write::settings(&mut greeting, &[]);
        upstream.write_all(&greeting).unwrap();
        upstream
    }

    /// Runs until a call has reached the upstream; returns its stream.
    fn next_call(&mut self, upstream: &mut TcpStream) -> u32 {
        let (mut bytes, mut buffer, mut stream) = (Vec::new(), [0; 4096], None);
        self.run_until(|| {
            match upstream.read(&mut buffer) {
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            let mut rest = bytes.strip_prefix(PREFACE).unwrap_or(&bytes);
            while let Ok(Some((head, _))) = split_frame(&mut rest, DEFAULT_MAX_FRAME_BYTES) {
                if head.kind() == kind::HEADERS {
                    stream = Some(head.stream());
                }
            }
            stream.is_some()
        });
        stream.unwrap()
    }
}

fn call(stream: u32, out: &mut Vec<u8>) {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a.B/C"),
    ];
    let block = Encoder::encode_plain(fields);
    write::header_block(out, stream, &block, write::EndStream(true));
}

#[test]
fn call_that_was_never_sent_goes_elsewhere() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, outside) = worker_before(listener.local_addr().unwrap());
    let mut client = TcpStream::connect(outside).unwrap();
    let mut greeting = PREFACE.to_vec();
    write::settings(&mut greeting, &[]);
    call(1, &mut greeting);
    client.write_all(&greeting).unwrap();
    let mut first = worker.accept_from(&listener);
    assert_eq!(worker.next_call(&mut first), 1);
    // Another call is given to the connection, which ends before the next write.
    let mut next = Vec::new();
    call(3, &mut next);
    client.write_all(&next).unwrap();
    worker.read_until(|worker| worker.counters(0).requests.get() == 2);
    drop(first);
    worker.read_until(|worker| worker.counters(0).upstream_lost.get() == 1);
    // The first call is lost, because the upstream may have processed it.
    assert_eq!(worker.counters(0).cut.get(), 1);
    assert_eq!(worker.counters(0).resent.get(), 1);
    let mut second = worker.accept_from(&listener);
    assert_eq!(worker.next_call(&mut second), 1);
    assert_eq!(worker.exchanges.len(), 1);
}
