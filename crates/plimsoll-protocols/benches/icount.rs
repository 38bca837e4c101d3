//! One load over a network in memory, for `make icount`: worker, driver and recorder as they run in production,
//! and nothing of the operating system, so that the same build takes the same instructions every time.
//!
//! `icount CASE CALLS` makes so many calls, 100 at a time over one connection. What the server does is inside of
//! [`serve`], which bench/icount.py leaves out of its count by that name.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::Protocol;
use plimsoll_engine::transport::address::Address;
use plimsoll_engine::transport::network::{
    LookupScope, Network, ResolveResult, ResolvedAddresses, SocketReady, SocketToken, WakeTime,
};
use plimsoll_engine::worker::{StopUrgency, Worker, WorkerControl, WorkerInterval, WorkerShare};
use plimsoll_model::Time;
use plimsoll_model::plan::{ArrivalModel, ArrivalSpacing, LoadPlan, LoadStage, Shard};
use plimsoll_model::records::record::RecordedInterval;
use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::{BoltCall, BoltFrame, BoltProtocol, Status};
use plimsoll_protocols::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use plimsoll_protocols::grpc::{GrpcCall, GrpcProtocol, GrpcRequest};
use plimsoll_protocols::http::{Http2Protocol, HttpCall, HttpRequest, HttpScheme};

const START: Time = Time(1_000_000_000);
const AT_ONCE: u32 = 100;

/// The far end of the connection.
enum Server {
    Http2(Box<CannedConnection>),
    Bolt,
}

/// Answers everything that the client has sent. It has a name in the binary, and is never part of another function.
#[inline(never)]
fn serve(server: &mut Server, requests: &mut Vec<u8>, answers: &mut Vec<u8>) -> io::Result<()> {
    match server {
        Server::Http2(connection) => connection
            .receive(requests, answers, &mut Vec::new())
            .map_err(io::Error::other)?,
        Server::Bolt => {
            let mut at = 0;
            while let Some((frame, length)) =
                BoltFrame::parse(&requests[at..], DEFAULT_MAX_CONTENT_BYTES)
                    .map_err(io::Error::other)?
            {
                BoltFrame::status_response(frame.layout, frame.id, frame.codec, Status::Success)
                    .write(answers);
                at += length;
            }
        }
    }
    requests.clear();
    Ok(())
}

/// One connection. Time passes when the worker waits.
struct Memory {
    server: Server,
    now: Time,
    token: SocketToken,
    is_connecting: bool,
    requests: Vec<u8>,
    answers: Vec<u8>,
    read: usize,
    names: VecDeque<SocketToken>,
}

impl Network for Memory {
    type Socket = ();

    fn now(&mut self) -> Time {
        self.now
    }

    fn connect(&mut self, _target: usize, _to: &Address, token: SocketToken) -> io::Result<()> {
        (self.token, self.is_connecting) = (token, true);
        if let Server::Http2(connection) = &mut self.server {
            connection.send_preface(&mut self.answers);
        }
        Ok(())
    }

    fn take_connect_result(&mut self, (): &mut ()) -> io::Result<()> {
        Ok(())
    }

    fn change_token(&mut self, (): &(), token: SocketToken) -> io::Result<()> {
        self.token = token;
        Ok(())
    }

    fn read(&mut self, (): &mut (), buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&self.answers[self.read..]).read(buffer)?;
        self.read += read;
        match read {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(read),
        }
    }

    fn write(&mut self, (): &mut (), slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let before = self.requests.len();
        for slice in slices {
            self.requests.extend_from_slice(slice);
        }
        Ok(self.requests.len() - before)
    }

    fn close(&mut self, (): ()) {}

    fn wait(&mut self, wake: Option<WakeTime>, ready: &mut Vec<SocketReady>) -> io::Result<()> {
        self.now = self.now.plus_nanos(20_000);
        ready.clear();
        if self.read == self.answers.len() && !self.requests.is_empty() {
            self.answers.clear();
            self.read = 0;
            serve(&mut self.server, &mut self.requests, &mut self.answers)?;
        }
        let readable = self.read < self.answers.len();
        if readable || self.is_connecting {
            self.is_connecting = false;
            ready.push(SocketReady {
                token: self.token,
                readable,
                writable: true,
                hangup: false,
            });
        } else if self.names.is_empty() {
            let wake = wake.ok_or_else(|| io::Error::other("the worker waits for nothing"))?;
            self.now = self.now.max(wake.at);
        }
        Ok(())
    }

    fn resolve(&mut self, _target: usize, token: SocketToken, _lookup: LookupScope) {
        self.names.push_back(token);
    }

    fn next_lookup_result(&mut self) -> Option<(SocketToken, ResolveResult)> {
        let found = ResolvedAddresses {
            addresses: Arc::new([Address::Tcp(([127, 0, 0, 1], 1).into())]),
            may_change: false,
            is_proxy: false,
        };
        self.names.pop_front().map(|token| (token, Ok(found)))
    }
}

/// The only worker of its load.
#[derive(Default)]
struct Alone {
    start: Option<Time>,
    total: RecordedInterval,
}

impl WorkerControl for Alone {
    fn stop_urgency(&self) -> StopUrgency {
        StopUrgency::Run
    }
    fn start_time(&self) -> Option<Time> {
        self.start
    }
    fn add_connections(&self, _change: i64) {}
    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        self.total.merge(&interval.recorded);
        None
    }
}

/// How many of `calls` calls succeeded.
fn run<P: Protocol>(
    arrivals: ArrivalModel,
    calls: u64,
    protocol: P,
    server: Server,
) -> io::Result<u64> {
    let load = LoadPlan {
        arrivals,
        stages: vec![LoadStage::constant_rate(
            "steady",
            Duration::from_secs(3600),
            1e6,
        )],
        calls: Some(calls),
        deadline: Some(Duration::from_secs(10)),
        spin: Duration::ZERO,
        ..LoadPlan::default()
    };
    let network = Memory {
        server,
        now: START,
        token: SocketToken(0),
        is_connecting: false,
        requests: Vec::new(),
        answers: Vec::new(),
        read: 0,
        names: VecDeque::new(),
    };
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), 1);
    let mut worker = Worker::new(share, network, Arc::new(protocol), None);
    let mut alone = Alone::default();
    worker.establish_connections(&mut alone)?;
    let start = START.plus_nanos(1_000_000_000);
    alone.start = Some(start);
    worker.run(start, &mut alone)?;
    Ok(alone.total.stage_mut(0).ok_calls())
}

fn grpc() -> io::Result<GrpcProtocol> {
    let call = GrpcCall {
        method: "score.ScoreService/GetScore".into(),
        message: b"\x0a\x10[0.1, 0.2, 0.35]".to_vec(),
        max_message: 1 << 22,
        ..GrpcCall::default()
    };
    let request = GrpcRequest {
        call: &call,
        authority: "localhost:50051",
        secure: false,
        deadline: None,
    };
    GrpcProtocol::new(&request).map_err(io::Error::other)
}

fn http2() -> Http2Protocol {
    let call = HttpCall {
        method: "GET".to_owned(),
        path: "/score".to_owned(),
        expect: vec![(200, 299)],
        max_body: 1 << 22,
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "localhost:8080",
        closes: false,
    };
    Http2Protocol::new(&request, HttpScheme::Http)
}

fn bolt() -> io::Result<BoltProtocol> {
    let call = BoltCall {
        class: b"com.alipay.sofa.rpc.core.request.SofaRequest".to_vec(),
        content: vec![7; 400],
        ..BoltCall::default()
    };
    BoltProtocol::new(&call).map_err(io::Error::other)
}

/// How many of `calls` calls of a case succeeded; `None`: there is no such case.
fn case(name: &str, calls: u64) -> Option<io::Result<u64>> {
    let closed = ArrivalModel::Closed {
        clients: AT_ONCE,
        think: Duration::ZERO,
    };
    let canned = || {
        let options = CannedOptions {
            check_requests: false,
            ..CannedOptions::default()
        };
        Server::Http2(Box::new(CannedServer::new(options).new_connection()))
    };
    Some(match name {
        "grpc" => grpc().and_then(|grpc| run(closed, calls, grpc, canned())),
        "grpc-open" => grpc().and_then(|grpc| {
            run(
                ArrivalModel::Open(ArrivalSpacing::Constant),
                calls,
                grpc,
                canned(),
            )
        }),
        "http2" => run(closed, calls, http2(), canned()),
        "bolt" => bolt().and_then(|bolt| run(closed, calls, bolt, Server::Bolt)),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().collect();
    let asked = match &words[..] {
        [_, name, calls] => calls
            .parse()
            .ok()
            .and_then(|calls| Some((calls, case(name, calls)?))),
        _ => None,
    };
    match asked {
        Some((calls, Ok(succeeded))) if calls == succeeded => ExitCode::SUCCESS,
        Some((calls, succeeded)) => {
            eprintln!("icount: of {calls} calls succeeded: {succeeded:?}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: icount grpc|grpc-open|http2|bolt CALLS");
            ExitCode::FAILURE
        }
    }
}
