//! Ladders that restart their servers and sidecars several times.

use std::collections::BTreeSet;

use plimsoll_model::runs::run::Run;

use super::{run_ladder, write_plan};
use crate::support::Place;

/// Otherwise a difference between two processes of one program would count as a difference between
/// rungs.
#[test]
fn servers_and_sidecars_restart_every_replicate() {
    let place = Place::new();
    write_plan(
        &place,
        "rate = \"400/s\"\nduration = \"5s\"",
        "batch = 10\nparts = [\"none\"]\nserve = [\"score\", \"--delay\", \"0s\"]\nvia = [\"direct\", \"two sidecars\"]",
    );
    let (out, record) = run_ladder(&place);
    let mut servers = BTreeSet::new();
    for rung in &record.rungs {
        // 100 rounds, in replicates of half a second.
        assert_eq!(rung.slices.len(), 10, "{out}");
        assert!(rung.in_turns.unwrap().p99_us.is_some(), "{rung:?}");
        for slice in &rung.slices {
            assert_eq!(slice.errors, 0, "{slice:?}");
            let run = Run::load(&place.path("ladder").join(&slice.run)).unwrap();
            let pids = &run.header.server_pids;
            assert!(!pids.is_empty() && servers.insert(pids.clone()), "{pids:?}");
        }
    }
    let sidecars = |rung: usize| record.rungs[rung].slices.iter();
    assert!(sidecars(0).all(|slice| slice.sidecar_cpu_us_per_call.is_none()));
    // Sidecars that had answered in the replicate before would give 0.
    assert!(sidecars(1).all(|slice| slice.sidecar_cpu_us_per_call.is_some_and(|us| us > 0.0)));
    // A replicate that lost half of its rounds on a busy machine does not count.
    let sittings = record.batches.unwrap().replicates;
    assert!((5..=10).contains(&sittings), "{sittings}");
    assert!(out.contains(&format!("and {sittings} replicates")), "{out}");
}
