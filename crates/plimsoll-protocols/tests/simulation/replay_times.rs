//! Simulation of replays: a server logs when each request arrives, and its log is compared with the replayed one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::Time;
use plimsoll_model::spec::{self, ResolveContext};
use plimsoll_protocols::http::{Http1Protocol, HttpCall, HttpRequest};

use super::{START, draw, run_under};

const LINES: u64 = 10_000;
/// Each of so many lines begins a burst of lines with the same time stamp.
const BURST_INTERVAL: u64 = 500;
const BURST_LINES: u64 = 100;
const MS: u64 = 1_000_000;
/// The simulated network takes 50 µs each way.
const ONE_WAY_NS: u64 = 50_000;

/// A log with a time stamp, in nanoseconds since its beginning, for each line.
struct RequestLog(Vec<u64>);

impl RequestLog {
    /// Draws gaps of up to 4 ms, about 500 lines a second, with bursts.
    fn draw(seed: u64) -> RequestLog {
        let mut now = 0;
        let times = (0..LINES).map(|line| {
            if line % BURST_INTERVAL >= BURST_LINES {
                now += draw(seed, line, 0, 4_000) * 1_000;
            }
            now
        });
        RequestLog(times.collect())
    }

    fn to_csv(&self) -> String {
        let mut text = "time,line\n".to_owned();
        for (line, time) in self.0.iter().enumerate() {
            let (seconds, micros) = (time / 1_000_000_000, time / 1_000 % 1_000_000);
            writeln!(text, "{seconds}.{micros:06},{line}").unwrap();
        }
        text
    }
}

impl ResolveContext for RequestLog {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &Path) -> std::io::Result<String> {
        Ok(self.to_csv())
    }
    fn read_bytes(&self, _: &Path) -> std::io::Result<Vec<u8>> {
        Ok(self.to_csv().into_bytes())
    }
}

/// A server that answers at once and logs when each line's request arrived.
#[derive(Default)]
struct LoggingServer {
    received: BTreeMap<SimulatedPeerId, String>,
    /// The time of each arrival, by the line that the path names.
    log: BTreeMap<usize, Time>,
    repeated: usize,
}

impl SimulatedServer for LoggingServer {
    fn on_open(&mut self, _: SimulatedPeerId, _: Time, _: &mut Vec<ServerAction>) {}

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let received = self.received.entry(peer).or_default();
        received.push_str(std::str::from_utf8(bytes).unwrap());
        while let Some((head, rest)) = received.split_once("\r\n\r\n") {
            let path = head.split(' ').nth(1).unwrap();
            let line = path.trim_start_matches('/').parse().unwrap();
            self.repeated += usize::from(self.log.insert(line, now).is_some());
            *received = rest.to_owned();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            actions.push(ServerAction::Send(answer.to_vec()));
        }
    }

    fn on_timer(&mut self, _: SimulatedPeerId, _: u64, _: Time, _: &mut Vec<ServerAction>) {}

    fn on_close(&mut self, peer: SimulatedPeerId, _: Time) {
        self.received.remove(&peer);
    }
}

fn replay(log: &RequestLog, speed: &str) -> LoggingServer {
    plimsoll_protocols::registry::register_protocols();
    let text = format!(
        "target = \"http://h:1\"\n[load]\nreplay = \"log.csv\"\nspeed = \"{speed}\"\nconnections = 128\n\
         [call.http]\npath = \"/{{{{row.line}}}}\"\n"
    );
    let plan = spec::resolve(&spec::read(&text).unwrap(), log).unwrap();
    let call: &HttpCall = plan.call.downcast_ref().unwrap();
    let protocol = Http1Protocol::new(&HttpRequest {
        call,
        authority: "h:1",
        closes: false,
    });
    let mut server = LoggingServer::default();
    let conditions = NetworkConditions::faultless(1);
    let mut record = run_under(conditions, plan.load.clone(), &mut server, protocol, None);
    assert_eq!(record.stage_mut(0).ok_calls(), LINES);
    server
}

#[test]
fn server_log_keeps_replayed_time_stamps() {
    for (seed, speed, times, divisor) in [(1, "1x", 1, 1), (2, "10x", 1, 10), (3, "0.5x", 2, 1)] {
        let log = RequestLog::draw(seed);
        let server = replay(&log, speed);
        assert_eq!((server.log.len(), server.repeated), (LINES as usize, 0));
        let mut lags: Vec<u64> = (server.log.iter())
            .map(|(line, at)| {
                let expected = START.0 + log.0[*line] * times / divisor + ONE_WAY_NS;
                at.0.abs_diff(expected)
            })
            .collect();
        lags.sort_unstable();
        let p99_9 = lags[lags.len() * 999 / 1000];
        assert!(p99_9 <= MS, "{speed}: {p99_9} ns");
    }
}
