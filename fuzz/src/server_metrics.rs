//! The metrics that a server publishes, in the text format of Prometheus. What is known of them is finite and not
//! negative, and their lines are read alike whatever other lines stand between them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_model::runs::server_metrics::parse_known_metrics;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let values = parse_known_metrics(&text);
    assert!(
        values
            .values()
            .all(|value| *value >= 0.0 && value.is_finite())
    );
    let mut spaced = String::new();
    for line in text.lines() {
        spaced.push_str("# TYPE a gauge\n\n");
        spaced.push_str(line);
        spaced.push('\n');
    }
    assert_eq!(parse_known_metrics(&spaced), values);
});
