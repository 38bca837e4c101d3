//! Arbitrary text as the output of `openssl s_time`: no panic, and consistent figures.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_report::exports::s_time;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(sections) = s_time::read(text) else {
        return;
    };
    assert!(!sections.is_empty() && s_time::is_s_time_output(text));
    for section in sections {
        assert!(section.resumed_connections.unwrap_or(0) <= section.connections);
        assert!(!section.resumed || text.contains("Now timing with session id reuse."));
    }
});
