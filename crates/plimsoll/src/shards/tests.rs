//! Simulates shards in virtual time with a store that is slow, fails, loses answers and stalls. A seed makes each run
//! reproducible.
//!
//! This file is long because all tests share one simulated store.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_model::plan::Shard;
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::{IntervalRecord, ShardState};
use plimsoll_model::{Outcome, Time};

use super::leader::{self, Leader, format_shards};
use super::member::{self, Member, MemberEvent};
use super::objects;
use super::store::{StoreRequest, StoreResponse};
use crate::load::multiprocess::wire::{FinishReport, ReadyReport, ShardMessage};
use fixtures::{arrival, charge};

pub(super) mod fixtures;

const TICK: u64 = 50_000_000;
const SECOND: u64 = 1_000_000_000;

/// Unix time at which the simulation begins, on the store's clock.
const START_UNIX_NS: u64 = 1_750_000_000 * SECOND;

/// Random numbers by SplitMix64.
struct SimulationRng(u64);

impl SimulationRng {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// Faults of the simulated store and clocks.
#[derive(Clone, Copy, Debug, Default)]
struct StoreFaults {
    /// One request in this many fails; 0 for none.
    failure_period: u64,
    /// Start and length of an outage in which the store answers 503, ns.
    outage: Option<(u64, u64)>,
    /// Maximum latency of a request, ns.
    latency: u64,
    /// Whether the store's timestamps have whole seconds only.
    coarse: bool,
    /// Maximum offset of a shard's clock, ns.
    skew: u64,
}

/// The fault, if any, of a simulated shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardFate {
    Fine,
    /// The shard is not started.
    NotStarted,
    /// The shard is killed at this time, ns.
    Killed(u64),
    /// The shard stalls at this time, for this long, ns.
    Stalled(u64, u64),
    /// The operator of the shard's machine stops it at this time, ns.
    Evicted(u64),
    /// A second shard with the same number is started at this time, ns.
    Duplicated(u64),
    OtherData,
}

#[derive(Clone, Copy)]
struct Requester {
    member: usize,
    member_request: Option<member::MemberRequestKind>,
    leader_request: Option<leader::LeaderRequestKind>,
}

struct SimulatedShard {
    member: Member,
    shard: Shard,
    started: u64,
    unix_zero: u64,
    fate: ShardFate,
    /// Start of its load, in simulated time.
    begins: Option<u64>,
    connected: Option<u64>,
    /// Seconds of load that it has reported.
    reported: u64,
    stop: u8,
    finished: bool,
    over: Option<MemberEvent>,
}

struct ShardSimulation {
    now: u64,
    rng: SimulationRng,
    faults: StoreFaults,
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    answers: BTreeMap<(u64, u64), (Requester, StoreResponse)>,
    request_count: u64,
    members: Vec<SimulatedShard>,
    leader: Leader,
    seconds: u64,
    rate: u64,
    intervals: Vec<IntervalRecord>,
    result: Option<Result<(), String>>,
    ended: bool,
    notices: Vec<String>,
    begun_at: Option<u64>,
    /// Number of requests of all shards, by second.
    requests: BTreeMap<u64, u64>,
}

/// Returns how long a call takes, ns, independent of the shard that makes it.
fn response_time_ns(second: u64, call: u64) -> u64 {
    SimulationRng(second << 32 | call).below(3 * SECOND)
}

impl ShardSimulation {
    fn new(of: u32, seed: u64, faults: StoreFaults, fates: &[(u32, ShardFate)]) -> ShardSimulation {
        ShardSimulation::with_barrier(of, seed, faults, fates, Duration::from_secs(120))
    }

    fn with_barrier(
        of: u32,
        seed: u64,
        faults: StoreFaults,
        fates: &[(u32, ShardFate)],
        barrier: Duration,
    ) -> ShardSimulation {
        let mut dice = SimulationRng(seed);
        let fate = |shard| {
            let found = fates.iter().find(|(index, _)| *index == shard);
            found.map_or(ShardFate::Fine, |(_, fate)| *fate)
        };
        let mut members = Vec::new();
        let mut add = |index: u32, started: u64, fate: ShardFate, dice: &mut SimulationRng| {
            let skew = dice.below(2 * faults.skew + 1) as i64 - faults.skew as i64;
            let unix_zero = (START_UNIX_NS + started).saturating_add_signed(skew);
            let data = if fate == ShardFate::OtherData {
                "y"
            } else {
                "x"
            };
            let arrival = arrival(index, of, format!("{index}@{started}"), data);
            members.push(SimulatedShard {
                member: Member::new(arrival, Time(0), unix_zero, barrier),
                shard: Shard { index, of },
                started,
                unix_zero,
                fate,
                begins: None,
                connected: None,
                reported: 0,
                stop: 0,
                finished: false,
                over: None,
            });
        };
        for shard in 0..of {
            if fate(shard) != ShardFate::NotStarted {
                let started = dice.below(5 * SECOND);
                let started = if shard == 0 { 0 } else { started };
                add(shard, started, fate(shard), &mut dice);
            }
            if let ShardFate::Duplicated(at) = fate(shard) {
                add(shard, at, ShardFate::Fine, &mut dice);
            }
        }
        let unix_zero = members[0].unix_zero;
        ShardSimulation {
            now: 0,
            rng: dice,
            faults,
            objects: BTreeMap::new(),
            answers: BTreeMap::new(),
            request_count: 0,
            members,
            leader: Leader::new(charge(of, barrier), Time(0), unix_zero),
            seconds: 20,
            rate: u64::from(of) * 7 + 3,
            intervals: Vec::new(),
            result: None,
            ended: false,
            notices: Vec::new(),
            begun_at: None,
            requests: BTreeMap::new(),
        }
    }

    fn ask(&mut self, who: Requester, ask: StoreRequest) {
        self.request_count += 1;
        *self.requests.entry(self.now / SECOND).or_default() += 1;
        let latency = 2_000_000 + self.rng.below(self.faults.latency.max(1));
        let done = self.now + latency;
        let down = self
            .faults
            .outage
            .is_some_and(|(from, long)| (from..from + long).contains(&self.now));
        let fails = down || self.rng.one_in(self.faults.failure_period);
        // A failed request may have taken effect all the same.
        let does = !fails || (!down && self.rng.one_in(2));
        let answer = match (does, ask) {
            (false, _) => None,
            (
                true,
                StoreRequest::Put {
                    name,
                    bytes,
                    create,
                },
            ) => {
                if create && self.objects.contains_key(&name) {
                    Some(StoreResponse::Exists)
                } else {
                    let at = START_UNIX_NS + self.now + latency / 2;
                    let at = if self.faults.coarse {
                        at / SECOND * SECOND
                    } else {
                        at | 1
                    };
                    self.objects.insert(name, (bytes, at));
                    Some(StoreResponse::Done)
                }
            }
            (true, StoreRequest::Get(name)) => Some(match self.objects.get(&name) {
                Some((bytes, at)) => StoreResponse::Bytes {
                    bytes: bytes.clone(),
                    modified_unix_ns: *at,
                },
                None => StoreResponse::Missing,
            }),
            (true, StoreRequest::List(folder)) => {
                let names = self.objects.keys().filter(|name| name.starts_with(&folder));
                Some(StoreResponse::Names(names.cloned().collect()))
            }
        };
        let answer = answer.filter(|_| !fails).unwrap_or(StoreResponse::Failed {
            problem: "503 Slow Down".into(),
            for_good: false,
        });
        self.answers
            .insert((done, self.request_count), (who, answer));
    }

    fn is_awake(&self, index: usize) -> bool {
        let m = &self.members[index];
        let there = self.now >= m.started && m.over.is_none();
        there
            && match m.fate {
                ShardFate::Killed(at) => self.now < at,
                ShardFate::Stalled(from, long) => !(from..from + long).contains(&self.now),
                _ => true,
            }
    }

    /// Returns whether the leader is alive; it dies with shard 0.
    fn is_leader_alive(&self) -> bool {
        !self.ended && !matches!(self.members[0].fate, ShardFate::Killed(at) if self.now >= at)
    }

    fn step(&mut self) {
        self.now += TICK;
        let later = self.answers.split_off(&(self.now + 1, 0));
        for (who, answer) in std::mem::replace(&mut self.answers, later).into_values() {
            if let Some(which) = who.leader_request {
                if self.is_leader_alive() {
                    self.leader.on_answer(which, answer, Time(self.now));
                }
            } else if let Some(which) = who.member_request
                && self.is_awake(who.member)
            {
                let m = &mut self.members[who.member];
                m.member
                    .on_answer(which, answer, Time(self.now - m.started));
            }
        }
        for index in 0..self.members.len() {
            if self.is_awake(index) {
                self.run_member(index);
            }
        }
        if self.is_leader_alive() {
            self.run_leader();
        }
    }

    fn run_member(&mut self, index: usize) {
        let now = self.now;
        let (seconds, rate) = (self.seconds, self.rate);
        let m = &mut self.members[index];
        let local = Time(now - m.started);
        while let Some(event) = m.member.next_event() {
            match event {
                MemberEvent::Connect => m.connected = Some(now + 100_000_000),
                MemberEvent::Begin(at) => m.begins = Some(at.0 + m.started),
                MemberEvent::MissedStart(_) => {
                    m.member
                        .log_message(&ShardMessage::Failed("too late".into()));
                    m.member.close(local);
                    m.finished = true;
                }
                MemberEvent::Stop(level) => m.stop = level,
                MemberEvent::Notice(_) => {}
                over @ (MemberEvent::Ended(_) | MemberEvent::Lost(_)) => m.over = Some(over),
            }
        }
        if m.connected.is_some_and(|at| now >= at) {
            m.connected = None;
            m.member.log_message(&ShardMessage::Ready(ReadyReport {
                workers: 1,
                open: 1,
                ..ReadyReport::default()
            }));
        }
        let evicted = matches!(m.fate, ShardFate::Evicted(at) if now >= at);
        if let Some(begins) = m.begins.filter(|_| !m.finished) {
            while !m.finished && now >= begins + (m.reported + 1) * SECOND {
                let second = m.reported;
                let calls = m.shard.share(rate);
                let mut record = StageRecord {
                    due: calls,
                    ..StageRecord::default()
                };
                record.outcomes.add(Outcome::Ok, calls);
                for call in (u64::from(m.shard.index)..rate).step_by(m.shard.of as usize) {
                    record.response.record(response_time_ns(second, call));
                }
                m.member
                    .log_message(&ShardMessage::Interval(Box::new(IntervalRecord {
                        index: second,
                        start_offset: Duration::from_secs(second),
                        length: Duration::from_secs(1),
                        stages: vec![(0, record)],
                        ..IntervalRecord::default()
                    })));
                m.reported += 1;
                let stopped = m.stop > 0 || evicted;
                if m.reported == seconds || stopped {
                    m.member.log_message(&ShardMessage::Finished(FinishReport {
                        interrupted: m.reported < seconds,
                        negotiated: None,
                    }));
                    m.member.close(local);
                    m.finished = true;
                }
            }
        } else if (evicted || m.stop > 0) && !m.finished {
            m.member.log_message(&ShardMessage::Finished(FinishReport {
                interrupted: true,
                negotiated: None,
            }));
            m.member.close(local);
            m.finished = true;
        }
        for (which, ask) in self.members[index].member.poll(local) {
            let who = Requester {
                member: index,
                member_request: Some(which),
                leader_request: None,
            };
            self.ask(who, ask);
        }
    }

    fn run_leader(&mut self) {
        let now = Time(self.now);
        for (which, ask) in self.leader.poll(now) {
            let who = Requester {
                member: 0,
                member_request: None,
                leader_request: Some(which),
            };
            self.ask(who, ask);
        }
        while let Some(event) = self.leader.next_event() {
            match event {
                leader::LeaderEvent::Interval(record, _) => self.intervals.push(*record),
                leader::LeaderEvent::Notice(text) => self.notices.push(text),
                leader::LeaderEvent::Started { .. } => self.begun_at = Some(self.now),
                leader::LeaderEvent::Connecting(_) | leader::LeaderEvent::StopRequested => {}
            }
        }
        if let Some(result) = self.leader.result() {
            self.result = Some(result.map_err(|e| e.to_string()));
            let exit = u8::from(self.result != Some(Ok(())));
            self.leader
                .announce_result(objects::RunResult::from_exit(exit), now);
        }
        self.ended = self.result.is_some() && self.leader.has_ended();
    }

    /// Runs until all shards have ended; panics if that takes more than `limit` seconds.
    #[track_caller]
    fn run(&mut self, limit: u64) {
        while self.now < limit * SECOND {
            let going = (0..self.members.len()).any(|i| {
                let m = &self.members[i];
                m.over.is_none() && !matches!(m.fate, ShardFate::Killed(at) if self.now >= at)
            });
            if !going && !self.is_leader_alive() {
                return;
            }
            self.step();
        }
        let hanging: Vec<u32> = (0..self.members.len())
            .filter(|i| self.is_awake(*i))
            .map(|i| self.members[i].shard.index)
            .collect();
        panic!(
            "after {limit} s shards {hanging:?} still wait; the leader's result: {:?}; notices: {:?}",
            self.result, self.notices
        );
    }

    fn due(&self) -> u64 {
        let stages = self.intervals.iter().flat_map(|i| &i.stages);
        stages.map(|(_, s)| s.due).sum()
    }

    /// Returns the number of calls that the shards have reported.
    fn reported(&self) -> u64 {
        self.members
            .iter()
            .map(|m| m.reported * m.shard.share(self.rate))
            .sum()
    }

    fn problem(&self) -> &str {
        match &self.result {
            Some(Err(problem)) => problem,
            other => panic!("{other:?}"),
        }
    }
}

const HARSH_FAULTS: StoreFaults = StoreFaults {
    failure_period: 20,
    outage: Some((25 * SECOND, 20 * SECOND)),
    latency: 300_000_000,
    coarse: true,
    skew: 3 * SECOND,
};

/// Asserts that every call is counted once and every second is complete.
#[track_caller]
fn assert_complete(world: &ShardSimulation) {
    assert_eq!(world.result, Some(Ok(())), "{:?}", world.notices);
    assert_eq!(world.due(), world.rate * world.seconds);
    assert_eq!(world.intervals.len() as u64, world.seconds);
    for interval in &world.intervals {
        assert_eq!(interval.stages[0].1.due, world.rate, "{}", interval.index);
    }
    for m in &world.members {
        let ended = MemberEvent::Ended(objects::RunResult::from_exit(0));
        assert_eq!(m.over, Some(ended), "shard {}", m.shard.index);
    }
    let states = world.leader.merger.shard_figures();
    assert!(states.iter().all(|s| s.state == ShardState::Complete));
}

#[test]
fn every_call_counts_once_despite_store_faults() {
    for seed in 0..40 {
        let of = 1 + (seed % 9) as u32;
        let mut world = ShardSimulation::new(of, seed, HARSH_FAULTS, &[]);
        // The outage falls into the load; measurements made meanwhile are kept.
        world.run(400);
        assert_complete(&world);
        // All shards start together, within the resolution of their clocks.
        let begins: Vec<u64> = world.members.iter().filter_map(|m| m.begins).collect();
        let (first, last) = (begins.iter().min().unwrap(), begins.iter().max().unwrap());
        assert!(last - first <= 2 * SECOND, "seed {seed}: {begins:?}");
    }
}

#[test]
fn histogram_is_independent_of_shard_count() {
    const RATE: u64 = 997;
    let histogram = |of: u32| {
        let mut world = ShardSimulation::new(of, u64::from(of), HARSH_FAULTS, &[]);
        world.rate = RATE;
        world.run(400);
        assert_complete(&world);
        let mut all = TimeHistogram::default();
        for interval in &world.intervals {
            all.merge(&interval.stages[0].1.response);
        }
        all
    };
    let one = histogram(1);
    assert_eq!(one.len(), RATE * 20);
    // The merged histogram equals that of all calls.
    let mut sum = TimeHistogram::default();
    for (second, call) in (0..20).flat_map(|s| (0..RATE).map(move |c| (s, c))) {
        sum.record(response_time_ns(second, call));
    }
    assert_eq!(one, sum);
    for of in [2, 4, 9] {
        assert_eq!(histogram(of), one, "{of} shards");
    }
}

#[test]
fn late_store_is_awaited_until_barrier_timeout() {
    // The outage is longer than a store may fail during a run, and shorter than the barrier timeout.
    let faults = StoreFaults {
        outage: Some((0, 200 * SECOND)),
        ..StoreFaults::default()
    };
    let mut world = ShardSimulation::with_barrier(3, 6, faults, &[], Duration::from_secs(300));
    world.run(400);
    assert_complete(&world);
}

#[test]
fn clock_offsets_match_within_store_date_resolution() {
    let fine = StoreFaults {
        latency: 20_000_000,
        skew: 5 * SECOND,
        ..StoreFaults::default()
    };
    let mut world = ShardSimulation::new(6, 3, fine, &[]);
    world.run(200);
    assert_complete(&world);
    let begins: Vec<u64> = world.members.iter().filter_map(|m| m.begins).collect();
    let spread = begins.iter().max().unwrap() - begins.iter().min().unwrap();
    // Either end may be off by one request and one tick of the simulation.
    assert!(spread <= 4 * (22_000_000 + TICK), "{begins:?}");
    for (figures, m) in world
        .leader
        .merger
        .shard_figures()
        .iter()
        .zip(&world.members)
    {
        let real = (START_UNIX_NS + m.started) as i64 - m.unix_zero as i64;
        let measured = figures.clock_offset_us.unwrap() * 1_000;
        let uncertainty = figures.clock_uncertainty_us.unwrap() as i64 * 1_000 + 2_000;
        assert!(
            (real - measured).abs() <= 2 * uncertainty,
            "shard {}: {real} {measured} ±{uncertainty}",
            figures.shard
        );
        assert!(uncertainty < 22_000_000 + TICK as i64);
    }
}

#[test]
fn thousand_shards_stay_exact_with_few_requests() {
    let faults = StoreFaults {
        failure_period: 100,
        outage: Some((30 * SECOND, 10 * SECOND)),
        latency: 200_000_000,
        ..StoreFaults::default()
    };
    let mut world = ShardSimulation::new(1_000, 11, faults, &[]);
    world.run(300);
    assert_complete(&world);
    let most = world.requests.values().max().unwrap();
    assert!(*most <= 6 * 1_000, "{most} requests in one second");
    let seconds = world.requests.len() as u64;
    let all: u64 = world.requests.values().sum();
    assert!(all <= 5 * 1_000 * seconds, "{all} requests in {seconds} s");
}

#[test]
fn missing_shard_is_named_at_barrier_timeout() {
    for seed in 0..5 {
        let fates = [
            (2, ShardFate::NotStarted),
            (5, ShardFate::NotStarted),
            (6, ShardFate::NotStarted),
        ];
        let mut world = ShardSimulation::new(8, seed, HARSH_FAULTS, &fates);
        world.run(250);
        let problem = world.problem();
        assert!(
            problem.starts_with("shards 2, 5, 6 of 8 did not join within 120 s"),
            "{problem}"
        );
        assert_eq!(world.due(), 0);
        for m in &world.members {
            let lost = matches!(&m.over, Some(MemberEvent::Lost(why)) if why == problem);
            assert!(lost, "shard {}: {:?}", m.shard.index, m.over);
        }
    }
}

#[test]
fn missing_leader_times_out() {
    let mut world =
        ShardSimulation::new(3, 1, StoreFaults::default(), &[(0, ShardFate::Killed(0))]);
    world.run(200);
    for m in &world.members[1..] {
        let lost = matches!(&m.over, Some(MemberEvent::Lost(why)) if why.starts_with("shard 0, which leads"));
        assert!(lost, "{:?}", m.over);
    }
}

#[test]
fn dead_shard_is_dropped_and_its_data_kept() {
    for seed in 0..10 {
        let at = (15 + seed) * SECOND;
        let faults = StoreFaults {
            outage: None,
            ..HARSH_FAULTS
        };
        let mut world = ShardSimulation::new(4, seed, faults, &[(3, ShardFate::Killed(at))]);
        world.run(250);
        let problem = world.problem();
        assert!(
            problem.starts_with("shard 3 of 4: it sent nothing for"),
            "{problem}"
        );
        // The last messages of the shard may not have been written.
        let all = world.reported();
        let part = world.members[3].shard.share(world.rate);
        assert!(
            world.due() <= all && world.due() + 4 * part >= all,
            "{} {all}",
            world.due()
        );
        let states = world.leader.merger.shard_figures();
        assert_eq!(states[3].state, ShardState::Lost);
        assert!(states[..3].iter().all(|s| s.state == ShardState::Complete));
        for m in &world.members[..3] {
            assert_eq!(
                m.over,
                Some(MemberEvent::Ended(objects::RunResult::from_exit(1)))
            );
        }
    }
}

#[test]
fn members_finish_alone_when_leader_dies() {
    let mut world = ShardSimulation::new(
        3,
        5,
        StoreFaults::default(),
        &[(0, ShardFate::Killed(15 * SECOND))],
    );
    world.run(200);
    for m in &world.members[1..] {
        let lost =
            matches!(&m.over, Some(MemberEvent::Lost(why)) if why.contains("plimsoll merge"));
        assert!(lost, "{:?}", m.over);
        assert!(
            m.member.is_log_written(),
            "all that was measured is in the store"
        );
    }
}

#[test]
fn short_stall_is_tolerated_long_stall_is_dropped() {
    let stands = |long: u64| {
        let fate = ShardFate::Stalled(14 * SECOND, long * SECOND);
        let mut world = ShardSimulation::new(3, 7, StoreFaults::default(), &[(1, fate)]);
        world.run(300);
        world
    };
    assert_complete(&stands(15));
    let world = stands(70);
    let problem = world.problem();
    assert!(
        problem.starts_with("shard 1 of 3: it sent nothing"),
        "{problem}"
    );
    assert_eq!(world.members[2].reported, world.seconds, "the others go on");
}

#[test]
fn evicted_shard_hands_over_and_stops_others() {
    let fate = ShardFate::Evicted(20 * SECOND);
    let mut world = ShardSimulation::new(3, 9, HARSH_FAULTS, &[(2, fate)]);
    world.run(300);
    let problem = world.problem();
    assert!(
        problem.starts_with("shard 2 of 3: was stopped early"),
        "{problem}"
    );
    assert_eq!(
        world.due(),
        world.reported(),
        "nothing that was measured is lost"
    );
    assert!(world.due() < world.rate * world.seconds);
    assert_eq!(
        world.leader.merger.shard_figures()[2].state,
        ShardState::Stopped
    );
}

#[test]
fn duplicate_shard_index_is_rejected_without_harm() {
    for at in [0, 3, 20] {
        let mut world = ShardSimulation::new(
            3,
            at,
            StoreFaults::default(),
            &[(1, ShardFate::Duplicated(at * SECOND))],
        );
        world.run(300);
        assert_eq!(world.result, Some(Ok(())), "{:?}", world.notices);
        assert_eq!(world.due(), world.rate * world.seconds);
        let refused = world.members.iter().filter(
            |m| matches!(&m.over, Some(MemberEvent::Lost(why)) if why.starts_with("shard 1 of this run has already joined")),
        );
        assert_eq!(refused.count(), 1);
    }
}

#[test]
fn shard_with_different_data_file_is_rejected() {
    let mut world = ShardSimulation::new(3, 2, HARSH_FAULTS, &[(2, ShardFate::OtherData)]);
    world.run(200);
    let problem = world.problem();
    assert!(
        problem.starts_with("shard 2 has another data file rows.csv than shard 0"),
        "{problem}"
    );
}

#[test]
fn unresponsive_store_is_abandoned() {
    let faults = StoreFaults {
        outage: Some((12 * SECOND, 10_000 * SECOND)),
        ..StoreFaults::default()
    };
    let mut world = ShardSimulation::new(3, 4, faults, &[]);
    world.run(400);
    let problem = world.problem();
    assert!(
        problem.starts_with("the rendezvous has not answered for 12"),
        "{problem}"
    );
    assert!(world.members.iter().all(|m| m.over.is_some()));
}

#[test]
fn consecutive_shard_numbers_are_printed_as_ranges() {
    assert_eq!(format_shards(&[3]), "shard 3");
    assert_eq!(format_shards(&[1, 2]), "shards 1, 2");
    assert_eq!(format_shards(&[2, 5, 6, 7, 9]), "shards 2, 5 to 7, 9");
}
