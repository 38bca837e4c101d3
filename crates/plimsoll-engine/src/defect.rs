//! Panics. Each is a defect of this program, but for those that the standard library and tokio raise where the
//! system refuses them a thread or memory. None ends what others do: a loop is run by
//! [`caught`], its neighbours go on, and the process says at its end that there was one.
//!
//! Invariant: every panic of the process is counted ([`seen`], [`refusals`]) and reported, whichever thread it
//! was on and whoever caught it, once [`watch`] was called.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// At most so many are printed: a defect that every connection meets must not fill a disk.
const MAX_REPORTED: u64 = 10;

/// Before a loop that panicked begins anew: it may panic at once again.
const RESTART_DELAY: Duration = Duration::from_millis(50);

static PANIC_COUNT: AtomicU64 = AtomicU64::new(0);
static REFUSAL_COUNT: AtomicU64 = AtomicU64::new(0);

/// What a panic came of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This program.
    Defect,
    /// The system, which refused a library a thread or memory.
    Refusal,
    /// The same, and the process can't go on: a thread has no stack for its signals, and its start can't unwind.
    FatalRefusal,
    /// The system, which lets an asynchronous runtime wait for its sockets no longer: what it served hangs.
    RuntimeFailure,
}

thread_local! {
    /// The message of this thread's last panic.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The text of a panic: thread, place and message, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(String);

/// Counts every panic from here on, and calls `report` with the first few, on the thread that
/// panics.
pub fn watch(report: fn(Cause, &str)) {
    panic::set_hook(Box::new(move |info| {
        let text = text(info);
        let message = message(info.payload());
        let file = info.location().map_or("", panic::Location::file);
        let cause = Cause::of(file, &message);
        let counter = match cause {
            Cause::Defect => &PANIC_COUNT,
            Cause::Refusal | Cause::FatalRefusal | Cause::RuntimeFailure => &REFUSAL_COUNT,
        };
        let reported = counter.fetch_add(1, Ordering::Relaxed) < MAX_REPORTED;
        if reported || matches!(cause, Cause::FatalRefusal | Cause::RuntimeFailure) {
            let trace = Backtrace::capture();
            match trace.status() {
                // Asked for with RUST_BACKTRACE.
                BacktraceStatus::Captured => report(cause, &format!("{text}\n{trace}")),
                _ if cause == Cause::Defect => report(cause, &text),
                _ => report(cause, &message),
            }
        }
        // A thread that is about to end has no place for it any more.
        let _ = LAST_PANIC.try_with(|last| last.replace(Some(text)));
    }));
}

/// How many panics there were, here and in processes that reported theirs ([`note`]).
pub fn seen() -> u64 {
    PANIC_COUNT.load(Ordering::Relaxed)
}

/// How many panics came of something that the system refused.
pub fn refusals() -> u64 {
    REFUSAL_COUNT.load(Ordering::Relaxed)
}

/// Another process that belongs to this one has reported a defect.
pub fn note() {
    PANIC_COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Does `work`, whose panic ends it and nothing else. What it had borrowed may be half
/// changed: the caller gives it up, or makes it anew.
///
/// # Errors
/// When it panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Defect> {
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Defect::of(&*payload))
}

/// Does `work` with `state` until it ends without a panic. After each, `anew` gives up what
/// can't be trusted any more.
pub fn persist<S, T>(state: &mut S, work: fn(&mut S) -> T, anew: fn(&mut S)) -> T {
    loop {
        if let Ok(done) = caught(|| work(state)) {
            return done;
        }
        anew(state);
        thread::sleep(RESTART_DELAY);
    }
}

impl Cause {
    /// Returns what a panic with `message` came of that was raised in the source `file`.
    fn of(file: &str, message: &str) -> Cause {
        let is_of_library = ["/library/std/", "/tokio-"]
            .iter()
            .any(|part| file.contains(part));
        let is_of_system = ["(os error ", "Os { code", "OS can't spawn"]
            .iter()
            .any(|part| message.contains(part));
        match is_of_library && is_of_system {
            false => Cause::Defect,
            true if message.contains("alternative stack") => Cause::FatalRefusal,
            true if message.contains("polling the I/O driver") => Cause::RuntimeFailure,
            true => Cause::Refusal,
        }
    }
}

impl Defect {
    fn of(payload: &(dyn Any + Send)) -> Defect {
        let reported = LAST_PANIC.with(|last| last.take());
        Defect(reported.unwrap_or_else(|| {
            let message = message(payload);
            format!("{} panicked: {message}", name(&thread::current()))
        }))
    }
}

fn text(info: &PanicHookInfo<'_>) -> String {
    let place = info
        .location()
        .map_or_else(String::new, |at| format!(" at {at}"));
    let message = message(info.payload());
    format!("{} panicked{place}: {message}", name(&thread::current()))
}

fn name(thread: &thread::Thread) -> &str {
    thread.name().unwrap_or("a thread")
}

/// On one line: it goes into files of lines.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no message",
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_continues_after_panics() {
        let mut state = (0, 0);
        let work = |state: &mut (u32, u32)| {
            state.0 += 1;
            assert!(state.0 > 2, "not yet");
            state.0
        };
        assert_eq!(persist(&mut state, work, |state| state.1 += 1), 3);
        assert_eq!(state, (3, 2));
    }

    #[test]
    fn library_resource_panics_count_as_refusals() {
        let library = "/rustc/59807616/library/std/src";
        for (file, message, cause) in [
            (
                &*format!("{library}/thread/functions.rs"),
                "failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"…\" }",
                Cause::Refusal,
            ),
            (
                &*format!("{library}/sys/pal/unix/stack_overflow.rs"),
                "failed to allocate an alternative stack: Cannot allocate memory (os error 12)",
                Cause::FatalRefusal,
            ),
            (
                "registry/src/index/tokio-1.48.0/src/runtime/blocking/pool.rs",
                "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
                Cause::Refusal,
            ),
            (
                "registry/src/index/tokio-1.48.0/src/runtime/io/driver.rs",
                "unexpected error when polling the I/O driver: Os { code: 22, kind: InvalidInput, message: \"…\" }",
                Cause::RuntimeFailure,
            ),
            (
                "crates/plimsoll-engine/src/worker.rs",
                "called `Result::unwrap()` on an `Err` value: Os { code: 11 }",
                Cause::Defect,
            ),
            (
                &*format!("{library}/collections/map.rs"),
                "no entry",
                Cause::Defect,
            ),
        ] {
            assert_eq!(Cause::of(file, message), cause, "{file}: {message}");
        }
    }

    #[test]
    fn caught_panic_reports_its_message() {
        assert_eq!(caught(|| 7), Ok(7));
        let defect = caught(|| -> u32 { panic!("two\nlines of {}", "text") }).unwrap_err();
        let text = defect.to_string();
        assert!(text.ends_with("panicked: two lines of text"), "{text}");
        let defect = caught(|| panic::panic_any(7)).unwrap_err();
        assert!(defect.to_string().ends_with("no message"), "{defect}");
    }
}
