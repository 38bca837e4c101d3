//! Tests of assembling the files that a server has sent.

use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{FileDescriptorProto, ServiceDescriptorProto};
use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Returns the CPU time of this thread for assembling a file with this many services: the minimum of three attempts, in
/// seconds.
fn cost_s(services: usize) -> f64 {
    let service = |n: usize| ServiceDescriptorProto {
        name: Some(format!("S{n}")),
        ..ServiceDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        syntax: Some("proto3".to_owned()),
        service: (0..services).map(service).collect(),
        ..FileDescriptorProto::default()
    };
    let file = ProtoFile::decode(&file.encode_to_vec()).unwrap();
    let wanted: Vec<String> = file.services().collect();
    let cpu_s = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let attempts = (0..3).map(|_| {
        let mut gathered = FileCollector::default();
        gathered.add_files(vec![file.clone()]).unwrap();
        let began = cpu_s();
        let schema = gathered.into_schema(&wanted);
        assert_eq!(schema.broken_services().count(), 0);
        cpu_s() - began
    });
    attempts.fold(f64::INFINITY, f64::min)
}

/// Eight times as many services must take about eight times as long; looking each up in all files would take
/// 64 times as long.
#[test]
fn assembly_time_is_linear_in_services() {
    let (few, many) = (cost_s(750), cost_s(6_000));
    assert!(many < 25.0 * few, "{few} s, {many} s");
}
