use plimsoll_model::spec::{self, ResolveContext};

use super::*;

/// Resolves plans without files, variables or schemas.
struct EmptyContext;

impl ResolveContext for EmptyContext {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &std::path::Path) -> std::io::Result<String> {
        Err(std::io::ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, _: &std::path::Path) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

const LIMITS: MachineLimits = MachineLimits {
    connections: 19_936,
    descriptors: 20_000,
    ports: 28_232,
    cores: 2,
    run_number: 4_711,
};

fn plan(load: &str) -> Plan {
    plimsoll_protocols::registry::register_protocols();
    let text = format!("target = \"http://a:1\"\n[call.fetch]\npath = \"/x\"\n[load]\n{load}\n");
    spec::resolve(&spec::read(&text).expect("a plan"), &EmptyContext).expect("a plan")
}

fn layout_for(load: &str, target: &str) -> Result<ProcessLayout, Failure> {
    let plan = plan(load);
    let target = target.parse().expect("an address");
    choose_for_limits(&plan, LoadRequirements::from_plan(&plan), LIMITS, || {
        Ok(target)
    })
}

fn layout_of(load: &str) -> Result<ProcessLayout, Failure> {
    layout_for(load, "127.0.0.1")
}

fn fleet(n: u32) -> String {
    format!("clients = {n}\nconnections = {n}\ncalls = 1000000")
}

#[track_caller]
fn assert_rejected(result: Result<ProcessLayout, Failure>, words: &[&str]) {
    let text = result.expect_err("it can't be done").to_string();
    for word in words {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn single_process_when_descriptors_suffice() {
    let one = layout_of(&fleet(19_936)).expect("it can be done");
    assert_eq!((one.processes, one.workers), (1, None));
    assert_eq!((one.sources, one.notes), (vec![], Vec::<String>::new()));
}

#[test]
fn process_and_source_counts_follow_resource_limits() {
    let many = layout_of(&fleet(100_000)).expect("it can be done");
    assert_eq!((many.processes, many.workers), (6, Some(1)));
    assert_eq!(many.sources.len(), 8);
    assert!(many.sources.iter().all(IpAddr::is_loopback));
    assert_eq!(many.notes.len(), 2, "{:?}", many.notes);
    assert!(many.notes[0].contains("6 processes"), "{:?}", many.notes);
    assert!(many.notes[1].contains("28,232 ports"), "{:?}", many.notes);
}

#[test]
fn requested_process_count_is_used_or_rejected() {
    let asked = |n: u32, load: &str| layout_of(&format!("{load}\nprocesses = {n}"));
    assert_eq!(asked(3, &fleet(6_000)).expect("fine").processes, 3);
    assert_eq!(
        asked(3, &fleet(6_000)).expect("fine").notes,
        Vec::<String>::new()
    );
    assert_rejected(
        asked(2, &fleet(100_000)),
        &["with 2, at most 39,872", "100,000", "use 6 or more"],
    );
    assert_rejected(
        asked(3, &fleet(2)),
        &["3 processes for a load that has only 2 connections"],
    );
    let open = "rate = \"10/s\"\nduration = \"1s\"";
    assert_rejected(asked(2, open), &["one connection"]);
    assert_eq!(
        asked(2, &format!("{open}\nconnections = 2"))
            .expect("fine")
            .processes,
        2
    );
    assert_eq!(
        asked(2, &format!("{open}\nreuse = \"never\""))
            .expect("fine")
            .processes,
        2
    );
}

#[test]
fn fewer_connections_than_shards_is_rejected() {
    let plan = plan("rate = \"10/s\"\nduration = \"1s\"");
    let needs = |index| LoadRequirements::from_plan(&plan).for_shard(Shard { index, of: 2 });
    for index in 0..2 {
        assert_rejected(
            choose_for_limits(&plan, needs(index), LIMITS, || {
                Ok(IpAddr::from([127, 0, 0, 1]))
            }),
            &[
                "--shards: more shards than the load has connections",
                "use fewer shards",
            ],
        );
    }
}

#[test]
fn remote_target_needs_explicit_source_addresses() {
    let load = fleet(30_000);
    assert_rejected(
        layout_for(&load, "192.0.2.7"),
        &["30,000 connections", "28,232 ports", "--source"],
    );
    assert_rejected(layout_for(&load, "::1"), &["127.0.0.1"]);
    let given = |range: &str| layout_of(&format!("{load}\nsource_addresses = [\"{range}\"]"));
    assert_rejected(
        given("127.0.0.2"),
        &["more ports than 1 address has", "give 2 addresses or more"],
    );
    assert_eq!(given("127.0.0.2-127.0.0.3").expect("fine").sources.len(), 2);
}

#[test]
fn source_addresses_stay_in_loopback_network() {
    for (number, n) in [(0, 1), (u32::MAX, 60_000), (4_194_304, 8)] {
        let first = u32::from(first_source_address(number, n));
        assert!(
            first > 0x7f00_0001 && first + n < 0x7fff_ffff,
            "{number} {n}"
        );
    }
}
