//! Panics put in on purpose, for the tests of what becomes of the real ones.
//!
//! `PLIMSOLL_FAULT=call:500,live:3` lets the five hundredth passing of the point `call` in
//! this process panic, and the third of `live`. Builds with debug assertions have the points,
//! and those with the feature `fault`; in the program that people install they are empty.

/// Panics where the environment asks for it.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Fault {
        name: String,
        at: u64,
        passed: AtomicU64,
    }
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    let faults = FAULTS.get_or_init(|| {
        let asked = std::env::var("PLIMSOLL_FAULT").unwrap_or_default();
        let faults = asked.split(',').filter_map(|fault| {
            let (name, at) = fault.split_once(':')?;
            Some(Fault {
                name: name.to_owned(),
                at: at.parse().ok()?,
                passed: AtomicU64::new(0),
            })
        });
        faults.collect()
    });
    for fault in faults.iter().filter(|fault| fault.name == name) {
        let passed = fault.passed.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(passed != fault.at, "a fault put in on purpose: {name}");
    }
}

/// Nothing: this build has no faults put in.
#[cfg(not(any(debug_assertions, feature = "fault")))]
#[inline(always)]
pub fn point(_name: &str) {}
