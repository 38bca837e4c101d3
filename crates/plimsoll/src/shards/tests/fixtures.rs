//! Fixtures for tests of shards: an arrival and a leader's configuration.

use std::time::Duration;

use jiff::Timestamp;
use plimsoll_model::runs::run::RunHeader;

use super::super::leader::LeaderConfig;
use super::super::objects::{self, Arrival, RunDigests, RunManifest};
use crate::settings::problems::PlanSource;

pub(in crate::shards) fn arrival(shard: u32, of: u32, token: String, data: &str) -> Arrival {
    Arrival {
        version: objects::FORMAT_VERSION,
        shard,
        of,
        token,
        digests: RunDigests {
            plan: "p".into(),
            build: "b".into(),
            data: [("rows.csv".to_owned(), data.to_owned())].into(),
        },
    }
}

pub(in crate::shards) fn charge(of: u32, barrier: Duration) -> LeaderConfig {
    LeaderConfig {
        arrival: arrival(0, of, "0@0".into(), "x"),
        manifest: RunManifest {
            version: objects::FORMAT_VERSION,
            of,
            keep_requests: false,
            header: header(),
            plan_toml: String::new(),
        },
        url: "grpc://x".into(),
        barrier,
    }
}

fn header() -> RunHeader {
    plimsoll_protocols::registry::register_protocols();
    let text = "target = \"grpc://127.0.0.1:1\"\ncall.grpc.method = \"score.ScoreService/GetScore\"\nload = { rate = \"100/s\", duration = \"20s\" }\n";
    let spec = plimsoll_model::spec::read(text).unwrap();
    let plan = crate::load::planning::resolve_plan(&spec, &Default::default(), &PlanSource::Flags)
        .unwrap();
    RunHeader::for_plan(&plan, "", "0", Timestamp::UNIX_EPOCH)
}
