//! Injection of panics and failing system calls, to test how real ones are handled.
//!
//! `PLIMSOLL_FAULT=call:500,live:3` makes the fault point `call` panic when this process reaches it for the 500th time,
//! and `live` the third time. At a fault point before a system call, the call fails instead. Only builds with debug
//! assertions or the feature `fault` contain fault points; in releases they are empty functions.

use std::io;

/// Panics if `PLIMSOLL_FAULT` requests it.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn point(name: &str) {
    assert!(!is_due(name), "injected fault: {name}");
}

/// Marks the point before a system call of this name.
///
/// # Errors
/// Returns ENOSYS if `PLIMSOLL_FAULT` requests it; the caller must then skip the system call.
#[cfg(any(debug_assertions, feature = "fault"))]
pub fn system_call(name: &str) -> io::Result<()> {
    if is_due(name) {
        Err(rustix::io::Errno::NOSYS.into())
    } else {
        Ok(())
    }
}

/// Counts an execution of the fault point `name`, and returns whether it is the one that must fail.
#[cfg(any(debug_assertions, feature = "fault"))]
fn is_due(name: &str) -> bool {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct InjectedFault {
        name: String,
        at: u64,
        passed: AtomicU64,
    }
    static INJECTED_FAULTS: OnceLock<Vec<InjectedFault>> = OnceLock::new();
    let faults = INJECTED_FAULTS.get_or_init(|| {
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
/// Returns no error.
#[cfg(not(any(debug_assertions, feature = "fault")))]
#[inline(always)]
pub fn system_call(_name: &str) -> io::Result<()> {
    Ok(())
}
