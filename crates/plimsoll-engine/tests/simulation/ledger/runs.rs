//! The runs whose records the ledger compares: kinds of load under kinds of network, and single plan keys.

use plimsoll_model::plan::BatchSchedule;

use super::super::*;

/// A run to be recorded.
pub(super) struct Run {
    pub(super) name: &'static str,
    pub(super) load: LoadPlan,
    pub(super) weather: NetworkConditions,
    pub(super) server: Box<dyn SimulatedServer>,
    pub(super) pauses: Vec<(Time, Duration)>,
    pub(super) stop_after: Option<(u32, StopLevel)>,
    pub(super) addresses: usize,
    pub(super) held_for: Duration,
    pub(super) of: u32,
    pub(super) trace: bool,
}

fn of(name: &'static str, load: LoadPlan, change: impl FnOnce(&mut Run)) -> Run {
    let mut run = Run {
        name,
        load,
        weather: NetworkConditions::calm(7),
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

fn constant(rate: f64, connections: u32) -> LoadPlan {
    load(
        ArrivalModel::Open(ArrivalSpacing::Constant),
        rate,
        connections,
    )
}

fn poisson(rate: f64, connections: u32) -> LoadPlan {
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
fn rough(seed: u64) -> NetworkConditions {
    NetworkConditions {
        seed,
        latency_us: 20..=4_000,
        piece: 1..=7,
        reset: 2_000,
        stall: 2_000,
        stall_ms: 1..=300,
        refuse: 100_000,
        ignore: 30_000,
        send_buffer: 64,
        ..NetworkConditions::calm(seed)
    }
}

fn stages(load: &mut LoadPlan) {
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
pub(super) fn everywhere() -> Vec<Run> {
    type Made = fn() -> LoadPlan;
    let loops: [(&str, Made); 6] = [
        ("constant", || constant(200.0, 3)),
        ("poisson", || poisson(200.0, 3)),
        ("clients", || clients(9, 0, 3)),
        ("clients who think", || clients(9, 7, 3)),
        ("new connections", || LoadPlan {
            reuse: ConnectionReuse::Never,
            ..constant(200.0, 3)
        }),
        ("clients with new connections", || LoadPlan {
            reuse: ConnectionReuse::Never,
            ..clients(5, 3, 5)
        }),
    ];
    type Change = fn(&mut Run);
    let changes: [(&str, Change); 14] = [
        ("calm", |_| {}),
        ("rough", |run| run.weather = rough(11)),
        ("rougher", |run| {
            run.weather = NetworkConditions {
                reset: 30_000,
                ..rough(12)
            }
        }),
        ("four stages", |run| stages(&mut run.load)),
        ("so many calls", |run| run.load.calls = Some(77)),
        ("second of three workers' share", |run| run.of = 3),
        ("overloaded, deadlines", |run| {
            run.server = Box::new(echo(190));
            run.load.deadline = Some(Duration::from_millis(260));
        }),
        ("no deadlines, a short drain", |run| {
            run.server = Box::new(Slow(echo(900)));
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
            run.server = Box::new(Slow(echo(400)));
            run.stop_after = Some((0, StopLevel::Graceful));
        }),
        ("stopped at once", |run| {
            run.server = Box::new(Slow(echo(400)));
            run.stop_after = Some((0, StopLevel::Now));
        }),
        ("a server that dies", |run| {
            run.server = Box::new(Mortal(echo(5)));
        }),
        ("a server that ends each connection", |run| {
            run.server = Box::new(Ends {
                how: Ending::AfterTheFirstAnswer,
                opened: 0,
            });
        }),
        ("a server that resets ten", |run| {
            run.server = Box::new(reluctant(10));
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
pub(super) fn keys() -> Vec<Run> {
    let ms = Duration::from_millis;
    vec![
        of("lifetime", constant(200.0, 4), |run| {
            run.load.connection_lifetime = Some(ms(300));
        }),
        of("lifetime, clients, rough", clients(6, 2, 4), |run| {
            run.load.connection_lifetime = Some(ms(300));
            run.weather = rough(21);
        }),
        of("calls a connection", constant(200.0, 4), |run| {
            run.load.calls_per_connection = Some(9);
        }),
        of(
            "calls a connection, clients, rough",
            clients(6, 0, 4),
            |run| {
                run.load.calls_per_connection = Some(9);
                run.weather = rough(22);
            },
        ),
        of("calls and time a connection", poisson(200.0, 4), |run| {
            run.load.calls_per_connection = Some(30);
            run.load.connection_lifetime = Some(ms(450));
        }),
        of("connect rate", constant(100.0, 6), |run| {
            run.load.connect_rate = Some(10.0);
            run.server = Box::new(reluctant(3));
        }),
        of("connect rate, lives", constant(100.0, 6), |run| {
            run.load.connect_rate = Some(5.0);
            run.load.calls_per_connection = Some(10);
        }),
        of("tick", constant(333.0, 2), |run| run.load.tick = ms(7)),
        of("tick, poisson, rough", poisson(333.0, 2), |run| {
            run.load.tick = ms(3);
            run.weather = rough(23);
        }),
        of("spin", constant(200.0, 2), |run| {
            run.load.spin = Duration::from_micros(100);
        }),
        of("small reads", constant(400.0, 2), |run| {
            run.load.read_buffer = 8;
            run.server = Box::new(echo(40));
        }),
        of("bytes counted", poisson(200.0, 2), |run| {
            run.load.count_bytes = true
        }),
        of("a driver's timer", constant(200.0, 2), |run| {
            run.held_for = ms(3)
        }),
        of("turns", constant(400.0, 2), |run| {
            run.load.turns = Some(turns(0, 1))
        }),
        of("turns, a bigger share", constant(400.0, 2), |run| {
            run.load.turns = Some(turns(1, 2));
        }),
        of("turns, poisson", poisson(400.0, 2), |run| {
            run.load.turns = Some(turns(2, 1));
        }),
        of("three addresses", constant(200.0, 7), |run| {
            run.addresses = 3
        }),
        of(
            "three addresses, new connections",
            constant(200.0, 3),
            |run| {
                run.addresses = 3;
                run.load.reuse = ConnectionReuse::Never;
                run.weather = rough(24);
            },
        ),
        of("addresses resolved again", constant(200.0, 6), |run| {
            run.addresses = 3;
            run.load.resolve_interval = ms(250);
            run.load.connection_lifetime = Some(ms(400));
        }),
        of("a server that goes away", constant(200.0, 3), |run| {
            run.server = Box::new(Leaves {
                opened: 0,
                first: None,
                then: echo(5),
            });
        }),
        of(
            "a server that goes away, clients",
            clients(9, 0, 3),
            |run| {
                run.server = Box::new(Leaves {
                    opened: 0,
                    first: None,
                    then: echo(5),
                });
            },
        ),
        of(
            "a server that answers to nothing",
            constant(50.0, 2),
            |run| {
                run.server = Box::new(Ends {
                    how: Ending::AnsweringNothing,
                    opened: 0,
                });
            },
        ),
        of(
            "a server that goes away at once",
            constant(50.0, 2),
            |run| {
                run.server = Box::new(Ends {
                    how: Ending::GoingAway,
                    opened: 0,
                });
            },
        ),
        of(
            "a server that closes at the first call",
            clients(3, 0, 2),
            |run| {
                run.server = Box::new(Ends {
                    how: Ending::WithTheFirstCall,
                    opened: 0,
                });
            },
        ),
        of("a server that is silent", constant(100.0, 2), |run| {
            run.server = Box::new(Silent::default());
        }),
        of("nobody is there", constant(50.0, 2), |run| {
            run.weather.refuse = 1_000_000
        }),
        of("nobody is there, clients", clients(5, 0, 2), |run| {
            run.weather.refuse = 1_000_000;
        }),
        of(
            "nobody is there, new connections",
            clients(5, 0, 5),
            |run| {
                run.weather.refuse = 1_000_000;
                run.load.reuse = ConnectionReuse::Never;
            },
        ),
        of("nobody answers", constant(50.0, 2), |run| {
            run.weather.ignore = 1_000_000;
            run.load.connect_timeout = ms(300);
        }),
        of(
            "nobody answers, new connections",
            constant(50.0, 2),
            |run| {
                run.weather.ignore = 1_000_000;
                run.load.connect_timeout = ms(300);
                run.load.reuse = ConnectionReuse::Never;
            },
        ),
        of("a peer that does not read", constant(50.0, 1), |run| {
            run.weather.send_buffer = 16;
            run.server = Box::new(Flood {
                pings: 40_000,
                reads_after: Some(Duration::from_millis(4_900)),
                taken: 0,
                taken_unread: 0,
                reads: false,
                pongs: 0,
                rest: Vec::new(),
            });
        }),
        of("traced", constant(20.0, 1), |run| run.trace = true),
        of("more clients than fit", clients(40, 0, 2), |_| {}),
        of("fewer clients than connections", clients(2, 1, 5), |_| {}),
        of(
            "clients and a warm-up of so many calls",
            clients(4, 0, 2),
            |run| {
                stages(&mut run.load);
                run.load.stages.truncate(2);
                run.load.stages[1].duration = None;
                run.load.calls = Some(120);
            },
        ),
    ]
}

fn turns(index: u32, share: u32) -> BatchSchedule {
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
