//! The runs whose records the ledger compares: kinds of load under kinds of network, and single plan keys.

use plimsoll_model::plan::BatchSchedule;

use super::super::*;

/// A run to be recorded.
pub(super) struct LedgerRun {
    pub(super) name: &'static str,
    pub(super) load: LoadPlan,
    pub(super) weather: NetworkConditions,
    pub(super) server: Box<dyn SimulatedServer>,
    pub(super) pauses: Vec<(Time, Duration)>,
    pub(super) stop_after: Option<(u32, StopUrgency)>,
    pub(super) addresses: usize,
    pub(super) held_for: Duration,
    pub(super) of: u32,
    pub(super) trace: bool,
}

fn of(name: &'static str, load: LoadPlan, change: impl FnOnce(&mut LedgerRun)) -> LedgerRun {
    let mut run = LedgerRun {
        name,
        load,
        weather: NetworkConditions::faultless(7),
        server: Box::new(echo(5)),
        pauses: Vec::new(),
        stop_after: None,
        addresses: 1,
        held_for: Duration::ZERO,
        of: 1,
        trace: false,
    };
    change(&mut run);
    run
}

fn constant_rate(rate: f64, connections: u32) -> LoadPlan {
    load(
        ArrivalModel::Open(ArrivalSpacing::Constant),
        rate,
        connections,
    )
}

fn poisson_rate(rate: f64, connections: u32) -> LoadPlan {
    load(
        ArrivalModel::Open(ArrivalSpacing::Poisson),
        rate,
        connections,
    )
}

fn clients(clients: u32, think_ms: u64, connections: u32) -> LoadPlan {
    let think = Duration::from_millis(think_ms);
    load(ArrivalModel::Closed { clients, think }, 0.0, connections)
}

/// Network conditions with small and slow pieces, resets, refusals and unanswered connects.
fn rough_network(seed: u64) -> NetworkConditions {
    NetworkConditions {
        seed,
        latency_us: 20..=4_000,
        piece: 1..=7,
        reset_ppm: 2_000,
        stall_ppm: 2_000,
        stall_ms: 1..=300,
        refuse_ppm: 100_000,
        ignore_ppm: 30_000,
        send_buffer: 64,
        ..NetworkConditions::faultless(seed)
    }
}

fn set_stages(load: &mut LoadPlan) {
    let stage = |name: &str, warmup, ms, rate_from, rate_to| LoadStage {
        name: name.to_owned(),
        warmup,
        duration: Some(Duration::from_millis(ms)),
        rate_from,
        rate_to,
    };
    load.stages = vec![
        stage("warm-up", true, 700, 50.0, 50.0),
        stage("ramp", false, 900, 50.0, 400.0),
        stage("steady", false, 1_100, 400.0, 400.0),
        stage("down", false, 300, 400.0, 0.0),
    ];
}

/// Returns runs of every kind of load under every network condition.
pub(super) fn runs_by_network() -> Vec<LedgerRun> {
    type MakeLoad = fn() -> LoadPlan;
    let loops: [(&str, MakeLoad); 6] = [
        ("constant", || constant_rate(200.0, 3)),
        ("poisson", || poisson_rate(200.0, 3)),
        ("clients", || clients(9, 0, 3)),
        ("clients who think", || clients(9, 7, 3)),
        ("new connections", || LoadPlan {
            reuse: ConnectionReuse::Never,
            ..constant_rate(200.0, 3)
        }),
        ("clients with new connections", || LoadPlan {
            reuse: ConnectionReuse::Never,
            ..clients(5, 3, 5)
        }),
    ];
    type ChangeRun = fn(&mut LedgerRun);
    let changes: [(&str, ChangeRun); 14] = [
        ("calm", |_| {}),
        ("rough", |run| run.weather = rough_network(11)),
        ("rougher", |run| {
            run.weather = NetworkConditions {
                reset_ppm: 30_000,
                ..rough_network(12)
            }
        }),
        ("four stages", |run| set_stages(&mut run.load)),
        ("so many calls", |run| run.load.calls = Some(77)),
        ("second of three workers' share", |run| run.of = 3),
        ("overloaded, deadlines", |run| {
            run.server = Box::new(echo(190));
            run.load.deadline = Some(Duration::from_millis(260));
        }),
        ("no deadlines, a short drain", |run| {
            run.server = Box::new(SlowServer(echo(900)));
            run.load.deadline = None;
            run.load.drain = Some(Duration::from_millis(400));
        }),
        ("pauses of the worker", |run| {
            run.pauses = vec![
                (Time(5_400_000_000), Duration::from_millis(120)),
                (Time(6_100_000_000), Duration::from_millis(700)),
            ];
        }),
        ("interrupted", |run| {
            run.server = Box::new(SlowServer(echo(400)));
            run.stop_after = Some((0, StopUrgency::Graceful));
        }),
        ("stopped at once", |run| {
            run.server = Box::new(SlowServer(echo(400)));
            run.stop_after = Some((0, StopUrgency::Now));
        }),
        ("a server that dies", |run| {
            run.server = Box::new(DyingServer(echo(5)));
        }),
        ("a server that ends each connection", |run| {
            run.server = Box::new(ClosingServer {
                how: ConnectionEnd::AfterFirstAnswer,
                opened: 0,
            });
        }),
        ("a server that resets ten", |run| {
            run.server = Box::new(resetting(10));
        }),
    ];
    let mut all = Vec::new();
    for (what, load) in loops {
        for (how, change) in changes {
            let name = Box::leak(format!("{what}: {how}").into_boxed_str());
            all.push(of(name, load(), change));
        }
    }
    all
}

/// Returns runs that each change one key of the plan.
pub(super) fn keys() -> Vec<LedgerRun> {
    let ms = Duration::from_millis;
    vec![
        of("lifetime", constant_rate(200.0, 4), |run| {
            run.load.connection_lifetime = Some(ms(300));
        }),
        of("lifetime, clients, rough", clients(6, 2, 4), |run| {
            run.load.connection_lifetime = Some(ms(300));
            run.weather = rough_network(21);
        }),
        of("calls a connection", constant_rate(200.0, 4), |run| {
            run.load.calls_per_connection = Some(9);
        }),
        of(
            "calls a connection, clients, rough",
            clients(6, 0, 4),
            |run| {
                run.load.calls_per_connection = Some(9);
                run.weather = rough_network(22);
            },
        ),
        of(
            "calls and time a connection",
            poisson_rate(200.0, 4),
            |run| {
                run.load.calls_per_connection = Some(30);
                run.load.connection_lifetime = Some(ms(450));
            },
        ),
        of("connect rate", constant_rate(100.0, 6), |run| {
            run.load.connect_rate = Some(10.0);
            run.server = Box::new(resetting(3));
        }),
        of("connect rate, lives", constant_rate(100.0, 6), |run| {
            run.load.connect_rate = Some(5.0);
            run.load.calls_per_connection = Some(10);
        }),
        of("tick", constant_rate(333.0, 2), |run| run.load.tick = ms(7)),
        of("tick, poisson, rough", poisson_rate(333.0, 2), |run| {
            run.load.tick = ms(3);
            run.weather = rough_network(23);
        }),
        of("spin", constant_rate(200.0, 2), |run| {
            run.load.spin = Duration::from_micros(100);
        }),
        of("small reads", constant_rate(400.0, 2), |run| {
            run.load.read_buffer = 8;
            run.server = Box::new(echo(40));
        }),
        of("bytes counted", poisson_rate(200.0, 2), |run| {
            run.load.count_bytes = true
        }),
        of("a driver's timer", constant_rate(200.0, 2), |run| {
            run.held_for = ms(3)
        }),
        of("turns", constant_rate(400.0, 2), |run| {
            run.load.batches = Some(batches(0, 1))
        }),
        of("turns, a bigger share", constant_rate(400.0, 2), |run| {
            run.load.batches = Some(batches(1, 2));
        }),
        of("turns, poisson", poisson_rate(400.0, 2), |run| {
            run.load.batches = Some(batches(2, 1));
        }),
        of("three addresses", constant_rate(200.0, 7), |run| {
            run.addresses = 3
        }),
        of(
            "three addresses, new connections",
            constant_rate(200.0, 3),
            |run| {
                run.addresses = 3;
                run.load.reuse = ConnectionReuse::Never;
                run.weather = rough_network(24);
            },
        ),
        of("addresses resolved again", constant_rate(200.0, 6), |run| {
            run.addresses = 3;
            run.load.resolve_interval = ms(250);
            run.load.connection_lifetime = Some(ms(400));
        }),
        of("a server that goes away", constant_rate(200.0, 3), |run| {
            run.server = Box::new(GoingAwayServer {
                opened: 0,
                first: None,
                then: echo(5),
            });
        }),
        of(
            "a server that goes away, clients",
            clients(9, 0, 3),
            |run| {
                run.server = Box::new(GoingAwayServer {
                    opened: 0,
                    first: None,
                    then: echo(5),
                });
            },
        ),
        of(
            "a server that answers to nothing",
            constant_rate(50.0, 2),
            |run| {
                run.server = Box::new(ClosingServer {
                    how: ConnectionEnd::AfterInvalidAnswer,
                    opened: 0,
                });
            },
        ),
        of(
            "a server that goes away at once",
            constant_rate(50.0, 2),
            |run| {
                run.server = Box::new(ClosingServer {
                    how: ConnectionEnd::GoingAway,
                    opened: 0,
                });
            },
        ),
        of(
            "a server that closes at the first call",
            clients(3, 0, 2),
            |run| {
                run.server = Box::new(ClosingServer {
                    how: ConnectionEnd::OnFirstCall,
                    opened: 0,
                });
            },
        ),
        of("a server that is silent", constant_rate(100.0, 2), |run| {
            run.server = Box::new(SilentServer::default());
        }),
        of("nobody is there", constant_rate(50.0, 2), |run| {
            run.weather.refuse_ppm = 1_000_000
        }),
        of("nobody is there, clients", clients(5, 0, 2), |run| {
            run.weather.refuse_ppm = 1_000_000;
        }),
        of(
            "nobody is there, new connections",
            clients(5, 0, 5),
            |run| {
                run.weather.refuse_ppm = 1_000_000;
                run.load.reuse = ConnectionReuse::Never;
            },
        ),
        of("nobody answers", constant_rate(50.0, 2), |run| {
            run.weather.ignore_ppm = 1_000_000;
            run.load.connect_timeout = ms(300);
        }),
        of(
            "nobody answers, new connections",
            constant_rate(50.0, 2),
            |run| {
                run.weather.ignore_ppm = 1_000_000;
                run.load.connect_timeout = ms(300);
                run.load.reuse = ConnectionReuse::Never;
            },
        ),
        of("a peer that does not read", constant_rate(50.0, 1), |run| {
            run.weather.send_buffer = 16;
            run.server = Box::new(PingFlood {
                pings: 40_000,
                reads_after: Some(Duration::from_millis(4_900)),
                taken: 0,
                taken_unread: 0,
                reads: false,
                pongs: 0,
                rest: Vec::new(),
            });
        }),
        of("traced", constant_rate(20.0, 1), |run| run.trace = true),
        of("more clients than fit", clients(40, 0, 2), |_| {}),
        of("fewer clients than connections", clients(2, 1, 5), |_| {}),
        of(
            "clients and a warm-up of so many calls",
            clients(4, 0, 2),
            |run| {
                set_stages(&mut run.load);
                run.load.stages.truncate(2);
                run.load.stages[1].duration = None;
                run.load.calls = Some(120);
            },
        ),
    ]
}

fn batches(index: u32, share: u32) -> BatchSchedule {
    BatchSchedule {
        of: 4,
        index,
        share,
        calls: 10,
        seed: 5,
        read_cpu: false,
        slot: None,
    }
}
