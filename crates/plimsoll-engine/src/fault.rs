//! Panics and failed system calls put in on purpose, for the tests of what becomes of the real ones.
//!
//! `PLIMSOLL_FAULT=call:500,live:3` lets the five hundredth passing of the point `call` in
//! this process panic, and the third of `live`; at a point that stands for a system call, the call fails instead.
//! Builds with debug assertions have the points, and those with the feature `fault`; in the program that people
//! install they are empty.

use std::io;

/// Panics where the environment asks for it.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn point(name: &str) {
    assert!(!is_due(name), "a fault put in on purpose: {name}");
}

/// Stands for a system call of this name.
///
/// # Errors
/// `ENOSYS`, where the environment asks for it: the call was not made.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn system_call(name: &str) -> io::Result<()> {
    if is_due(name) {
        Err(rustix::io::Errno::NOSYS.into())
    } else {
        Ok(())
    }
}

/// Counts a passing of `name`, and returns whether it is the one that the environment asks for.
#[cfg(any(debug_assertions, feature = "fault"))]
fn is_due(name: &str) -> bool {
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
    let mut is_due = false;
    for fault in faults.iter().filter(|fault| fault.name == name) {
        is_due |= fault.passed.fetch_add(1, Ordering::Relaxed) + 1 == fault.at;
    }
    is_due
}

/// Nothing: this build has no faults put in.
#[cfg(not(any(debug_assertions, feature = "fault")))]
#[inline(always)]
pub fn point(_name: &str) {}

/// Never fails: this build has no faults put in.
///
/// # Errors
/// None.
#[cfg(not(any(debug_assertions, feature = "fault")))]
#[inline(always)]
pub fn system_call(_name: &str) -> io::Result<()> {
    Ok(())
}
