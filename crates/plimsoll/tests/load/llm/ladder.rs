//! The same tokens over server-sent events and over WebSockets, as rungs of one ladder.

use std::fs;
use std::path::Path;

use plimsoll_model::comparisons::ladder::LadderRecord;

use crate::support::{Place, stderr_of};

#[test]
fn sse_and_websocket_rungs_read_all_tokens() {
    let place = Place::new();
    let serve = [
        "llm",
        "--token-delay",
        "1ms",
        "--with-gateway",
        "127.0.0.1:0",
    ];
    let mut server = place.serve(&serve);
    let api = server.address().to_owned();
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let plan = fs::read_to_string(plans.join("ws-sse.toml")).unwrap();
    let plan = plan
        .replace("127.0.0.1:8000", &api)
        .replace("127.0.0.1:4040", &server.next_address());
    fs::write(place.path("plan.toml"), &plan).unwrap();
    let outline = place.expect(
        0,
        &[
            "ladder",
            "plan.toml",
            "--slice",
            "300ms",
            "--rounds",
            "2",
            "--dry-run",
        ],
    );
    assert!(
        outline.contains("each after a warm-up of 75 ms, 0 s for WebSockets"),
        "{outline}"
    );
    assert!(outline.contains("2 s of load at most"), "{outline}");
    let short = ["--slice", "300ms", "--rounds", "2", "--out", "ladder", "-q"];
    let climbed = place.run(&[&["ladder", "plan.toml"], &short[..]].concat());
    // So few slices on a busy machine may not be conclusive.
    let code = climbed.status.code();
    assert!(matches!(code, Some(0 | 90)), "{}", stderr_of(&climbed));
    let record: LadderRecord = serde_json::from_str(&place.read("ladder/ladder.json")).unwrap();
    let names: Vec<&str> = record.rungs.iter().map(|rung| rung.name.as_str()).collect();
    assert_eq!(names, ["server-sent events", "WebSockets"]);
    for (rung, protocol) in [("rung-1", "http"), ("rung-2", "session")] {
        for slice in ["slice-01", "slice-02"] {
            let run = place.run_json(&format!("ladder/{rung}/{slice}"));
            assert_eq!(run["protocol"], protocol, "{run}");
            assert_eq!(run["total"]["errors"], 0, "{run}");
            assert_ne!(run["total"]["ok"], 0, "{run}");
            let counts = &run["total"]["measures"]["counts"];
            assert_ne!(counts["tokens_received"], 0, "{counts}");
            assert_eq!(counts["tokens_missing"], 0, "{counts}");
        }
    }
}
