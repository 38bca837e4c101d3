//! Compares everything that runs do and record, for many loads and network conditions, with `ledger/*.txt`:
//! times of each request, each interval, and when data reached the server.
//!
//! The other tests check specific properties; this one detects any other change. If a change is intended,
//! `make golden` rewrites the files, and their diff shows the affected runs.

use std::fmt::Write as _;

use plimsoll_model::records::record::{RequestRecord, TimeHistogram};
use snapbox::{assert_data_eq, file};

use super::*;

mod runs;

use runs::{LedgerRun, keys, runs_by_network};

/// 64-bit FNV-1a, which is the same on every machine.
#[derive(Clone, Copy)]
struct Digest(u64);

impl Digest {
    const EMPTY: Digest = Digest(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn all<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            self.add(&number.to_le_bytes());
        }
    }
}

/// Records what a server receives, and forwards it.
struct RecordingServer {
    then: Box<dyn SimulatedServer>,
    opened: u64,
    closed: u64,
    reads: u64,
    bytes: usize,
    digest: Digest,
}

impl SimulatedServer for RecordingServer {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        self.opened += 1;
        self.digest.all([1, peer.0, now.0]);
        self.then.on_open(peer, now, actions);
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.reads += 1;
        self.bytes += bytes.len();
        self.digest.all([2, peer.0, now.0]);
        self.digest.add(bytes);
        self.then.on_receive(peer, bytes, now, actions);
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_timer(peer, tag, now, actions);
    }
    fn on_client_read(&mut self, peer: SimulatedPeerId, bytes: usize) {
        self.digest.all([3, peer.0, bytes as u64]);
        self.then.on_client_read(peer, bytes);
    }
    fn on_close(&mut self, peer: SimulatedPeerId, now: Time) {
        self.closed += 1;
        self.digest.all([4, peer.0, now.0]);
        self.then.on_close(peer, now);
    }
}

/// Records what a worker reports.
struct RecordingControl {
    start: Option<Time>,
    stop_after: Option<(u32, StopUrgency)>,
    level: StopUrgency,
    connections: std::cell::Cell<i64>,
    total: RecordedInterval,
    intervals: String,
}

impl WorkerControl for RecordingControl {
    fn stop_urgency(&self) -> StopUrgency {
        self.level
    }
    fn start_time(&self) -> Option<Time> {
        self.start
    }
    fn add_connections(&self, change: i64) {
        self.connections.set(self.connections.get() + change);
    }
    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        self.total.merge(&interval.recorded);
        let ended: u64 = interval
            .recorded
            .recorded_stages()
            .map(|(_, s)| s.ended_calls())
            .sum();
        write!(
            self.intervals,
            " {}@{}:{ended}+{}+{}/{}",
            interval.index,
            interval.end_ns,
            interval.in_flight,
            interval.backlog,
            interval.connections
        )
        .unwrap();
        if let Some((after, level)) = self.stop_after
            && interval.index >= after
        {
            self.level = level;
        }
        let mut spare = interval.recorded;
        spare.clear();
        Some(spare)
    }
}

fn times(digest: &mut Digest, times: &TimeHistogram) {
    let Some(h) = times.histogram() else { return };
    for bucket in h.iter_recorded() {
        digest.all([bucket.value_iterated_to(), bucket.count_at_value()]);
    }
}

fn format_outcomes(counts: &plimsoll_model::records::record::OutcomeCounts) -> String {
    let texts = counts
        .iter()
        .map(|(outcome, n)| format!(" {}={n}", outcome.code()));
    texts.collect()
}

fn write_stage(page: &mut String, index: u8, record: &StageRecord) {
    let r = record;
    writeln!(
        page,
        "  stage {index}: due={} not_started={} expired_unsent={} late={} waited={}+{}{}",
        r.due,
        r.not_started,
        r.expired_unsent,
        r.late,
        r.waited_for_stream,
        r.waited_for_connection,
        format_outcomes(&r.outcomes)
    )
    .unwrap();
    writeln!(
        page,
        "  connections: full={} lost={} unused={} failed:{}",
        r.connections_full,
        r.connections_lost,
        r.connections_unused,
        format_outcomes(&r.connect_failures),
    )
    .unwrap();
    for (address, c) in &r.addresses {
        writeln!(
            page,
            "  at {address}: {} {} {} {}",
            c.connections, c.calls, c.errors, c.connect_failures
        )
        .unwrap();
    }
    if let Some(h) = r.response.histogram() {
        let quantiles = [0.0, 0.5, 0.99, 1.0].map(|q| h.value_at_quantile(q).to_string());
        writeln!(page, "  response: {} ns", quantiles.join(" ")).unwrap();
    }
    let mut digest = Digest::EMPTY;
    digest.all([r.bytes_sent, r.bytes_received]);
    for of in [&r.response, &r.service, &r.first_byte, &r.failed] {
        times(&mut digest, of);
    }
    for of in [&r.lag, &r.pacing, &r.delayed, &r.cut_off] {
        times(&mut digest, of);
    }
    let (connect, ready) = (TimeMeasure::Connect, TimeMeasure::Ready);
    let (total, cold_total) = (TimeMeasure::Connection, TimeMeasure::ColdTotal);
    if !r.measures.times(total).is_empty() {
        for measure in [connect, ready, total, cold_total] {
            times(&mut digest, r.measures.times(measure));
        }
    }
    writeln!(page, "  bytes, times: {:016x}", digest.0).unwrap();
}

fn request(digest: &mut Digest, request: &RequestRecord) {
    let s = &request.sample;
    let phases = request.phases.map_or(0, |p| p.total_ns());
    digest.all([s.number, s.arrival.0, s.sent.0, s.first_byte.0, s.done.0]);
    digest.add(s.outcome.code().as_bytes());
    digest.all([s.stage.into(), phases]);
}

/// Executes a run and returns its record as text.
fn written(run: LedgerRun) -> String {
    let mut seen = RecordingServer {
        then: run.server,
        opened: 0,
        closed: 0,
        reads: 0,
        bytes: 0,
        digest: Digest::EMPTY,
    };
    let addresses: Vec<SocketAddr> = (1..=run.addresses)
        .map(|last| ([10, 0, 0, last as u8], 1).into())
        .collect();
    let mut weather = run.weather;
    weather.pauses = run.pauses;
    if run.addresses > 1 {
        weather.addresses = addresses;
    }
    let network = SimulatedNetwork::new(&mut seen, weather);
    let protocol = Ids {
        held_for: run.held_for,
        ..Ids::default()
    };
    let (numbers, waited) = (Arc::clone(&protocol.numbers), Arc::clone(&protocol.waited));
    let mut worker = worker_with(run.load, network, run.of, protocol, |share| {
        (share.keep_requests, share.trace) = (true, run.trace);
    });
    let mut book = RecordingControl {
        start: None,
        stop_after: run.stop_after,
        level: StopUrgency::Run,
        connections: std::cell::Cell::new(0),
        total: RecordedInterval::default(),
        intervals: String::new(),
    };
    let established = worker.establish_connections(&mut book).unwrap();
    book.start = Some(Time(5_000_000_000));
    worker.run(Time(5_000_000_000), &mut book).unwrap();
    drop(worker);

    let mut page = format!("{}\n", run.name);
    writeln!(
        page,
        "  established: {} open, {} failed; {} at the end",
        established.open,
        established.failed,
        book.connections.get()
    )
    .unwrap();
    writeln!(page, "  seconds:{}", book.intervals).unwrap();
    for (index, record) in book.total.recorded_stages() {
        write_stage(&mut page, index, record);
    }
    for detail in &book.total.details {
        writeln!(page, "  {}: {}", detail.code.code(), detail.text).unwrap();
    }
    let mut digest = Digest::EMPTY;
    for one in &book.total.requests {
        request(&mut digest, one);
    }
    for number in numbers.lock().unwrap().iter() {
        digest.all([*number]);
    }
    for waited in waited.lock().unwrap().iter() {
        digest.all([waited.as_nanos() as u64]);
    }
    let Digest(requests) = digest;
    let count = book.total.requests.len();
    writeln!(page, "  requests: {count}, {requests:016x}").unwrap();
    let (opened, closed, reads, bytes) = (seen.opened, seen.closed, seen.reads, seen.bytes);
    let Digest(events) = seen.digest;
    writeln!(
        page,
        "  server: {opened} opened, {closed} closed, {reads} reads of {bytes} bytes, {events:016x}"
    )
    .unwrap();
    page
}

#[test]
fn load_loops_match_recorded_ledger() {
    let pages: Vec<String> = runs_by_network().into_iter().map(written).collect();
    assert_data_eq!(pages.join("\n"), file!["ledger/loops.txt"].raw());
}

#[test]
fn plan_keys_match_recorded_ledger() {
    let pages: Vec<String> = keys().into_iter().map(written).collect();
    assert_data_eq!(pages.join("\n"), file!["ledger/keys.txt"].raw());
}
