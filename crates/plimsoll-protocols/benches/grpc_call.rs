//! What a unary call costs in the client driver, without sockets, with a message that is
//! always the same and with ones that vary: start and answer of 100 calls a batch on one
//! connection, and of 10 on each of 10. The canned server runs
//! between the stopwatch's readings.
//!
//! `cargo bench -p plimsoll-protocols --no-default-features --features schema --bench grpc_call`

#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock itself"
)]
#![expect(clippy::print_stdout, reason = "its result")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use plimsoll_engine::driver::{CallId, Driver, Event, Protocol};
use plimsoll_model::Time;
use plimsoll_model::rows::template::{RowOrder, VariationSettings, VaryingMessages};
use plimsoll_protocols::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use plimsoll_protocols::grpc::schema::Schema;
use plimsoll_protocols::grpc::{GrpcCall, GrpcDriver, GrpcProtocol, GrpcRequest};

const ROUNDS: usize = 2_000;
const RUNS: usize = 50;

struct Pair {
    driver: GrpcDriver,
    server: CannedConnection,
    out: Vec<u8>,
    to_client: Vec<u8>,
}

fn measure(protocol: &GrpcProtocol, connections: usize, calls: u32) -> (f64, f64) {
    let options = CannedOptions {
        check_requests: false,
        ..CannedOptions::default()
    };
    let canned = CannedServer::new(options);
    let mut pairs: Vec<Pair> = (0..connections)
        .map(|_| {
            let mut pair = Pair {
                driver: protocol.new_driver(),
                server: canned.new_connection(),
                out: Vec::new(),
                to_client: Vec::new(),
            };
            pair.driver.open(Time(0), &mut pair.out);
            pair.server.send_preface(&mut pair.to_client);
            pair
        })
        .collect();
    let (mut events, mut held) = (Vec::new(), Vec::new());
    let (mut client_time, mut server_time) = (Duration::ZERO, Duration::ZERO);
    let mut done = 0;
    for round in 0..ROUNDS {
        for pair in &mut pairs {
            let begin = Instant::now();
            events.clear();
            pair.driver
                .receive(
                    &pair.to_client,
                    Time(round as u64),
                    &mut pair.out,
                    &mut events,
                )
                .expect("the canned server keeps the rules");
            done += events
                .iter()
                .filter(|event| matches!(event, Event::Done(d) if d.outcome.is_ok()))
                .count();
            for call in 0..calls {
                let number = (round as u64) << 8 | u64::from(call);
                pair.driver
                    .start(CallId(call), number, Time(round as u64), &mut pair.out);
            }
            let middle = Instant::now();
            pair.to_client.clear();
            pair.server
                .receive(black_box(&pair.out), &mut pair.to_client, &mut held)
                .expect("the driver keeps the rules");
            pair.out.clear();
            let end = Instant::now();
            client_time += middle - begin;
            server_time += end - middle;
        }
    }
    assert_eq!(
        done,
        (ROUNDS - 1) * connections * calls as usize,
        "every call succeeds"
    );
    let per_call =
        |time: Duration| time.as_nanos() as f64 / (ROUNDS * connections * calls as usize) as f64;
    (per_call(client_time), per_call(server_time))
}

/// A call whose score vector is `json`.
fn protocol(json: &str) -> GrpcProtocol {
    let schema = Schema::builtin().expect("the built-in protos");
    let method = schema.method("score.ScoreService/GetScore");
    let method = method.expect("a built-in method");
    let requests = schema.encode_all(&method, json, None).expect("good data");
    let call = GrpcCall {
        method: method.path(),
        message: requests.messages[0].clone(),
        varying: (!requests.varying.is_empty()).then(|| VaryingMessages {
            variation: VariationSettings::new(1, 100, 0, RowOrder::RoundRobin),
            messages: requests.varying,
        }),
        max_message: 1 << 22,
        ..GrpcCall::default()
    };
    let authority = "localhost:50051";
    let request = GrpcRequest {
        call: &call,
        authority,
        secure: false,
        deadline: None,
    };
    GrpcProtocol::new(&request).expect("a good call")
}

fn main() {
    let filling = "0.5, ".repeat(20);
    for (what, field) in [
        ("constant", "17"),
        ("seq", "{{seq}}"),
        ("random", "{{random 0.0000 0.9999}}"),
        ("seq, random and uuid", "{{seq}} {{random 1 100}} {{uuid}}"),
    ] {
        let protocol = protocol(&format!(r#"{{"json": "[{filling}{field}]"}}"#));
        for (connections, calls) in [(1, 100), (10, 10), (1, 1)] {
            // The least of many short runs is what the code costs; the rest is the machine's.
            let runs: Vec<_> = (0..RUNS)
                .map(|_| measure(&protocol, connections, calls))
                .collect();
            let least =
                |pick: fn(&(f64, f64)) -> f64| runs.iter().map(pick).fold(f64::INFINITY, f64::min);
            println!(
                "{what}, {connections}x{calls}: client driver {:.1} ns a call, canned server {:.1} ns",
                least(|run| run.0),
                least(|run| run.1)
            );
        }
    }
}
