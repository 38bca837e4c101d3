//! Injected panics and failed system calls, for tests of how real ones are handled.
//!
//! `PLIMSOLL_FAULT=call:500,live:3` makes the 500th passing of the point `call` in this process panic, and
//! the third of `live`; at a point that stands for a system call, the call fails instead. Only builds with
//! debug assertions or the feature `fault` contain the points; in released programs they are empty.

use std::io;

/// Panics if the environment requests it.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn point(name: &str) {
    assert!(!is_due(name), "injected fault: {name}");
}

/// Marks the place before a system call of this name.
///
/// # Errors
/// ENOSYS if the environment requests it: the call was not made.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn system_call(name: &str) -> io::Result<()> {
    if is_due(name) {
        Err(rustix::io::Errno::NOSYS.into())
    } else {
        Ok(())
    }
}

/// Counts a passing of the point `name`, and returns whether it is the requested one.
#[cfg(any(debug_assertions, feature = "fault"))]
fn is_due(name: &str) -> bool {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct InjectedFault {
        name: String,
        at: u64,
        passed: AtomicU64,
    }
    static FAULTS: OnceLock<Vec<InjectedFault>> = OnceLock::new();
    let faults = FAULTS.get_or_init(|| {
        let asked = std::env::var("PLIMSOLL_FAULT").unwrap_or_default();
        let faults = asked.split(',').filter_map(|fault| {
            let (name, at) = fault.split_once(':')?;
            Some(InjectedFault {
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

/// Does nothing: this build injects no faults.
#[cfg(not(any(debug_assertions, feature = "fault")))]
#[inline(always)]
pub fn point(_name: &str) {}

/// Never fails: this build injects no faults.
///
/// # Errors
/// None.
#[cfg(not(any(debug_assertions, feature = "fault")))]
#[inline(always)]
pub fn system_call(_name: &str) -> io::Result<()> {
    Ok(())
}
