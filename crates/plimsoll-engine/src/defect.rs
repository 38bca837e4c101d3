//! Handling of panics. Every panic is a defect of this program, except for those that the standard library and tokio
//! raise when the system denies them a thread or memory. A panic does not end unrelated work: loops run under
//! [`catch_panic`], other threads continue, and the process reports at its end that a panic occurred.
//!
//! Invariant: once [`install_panic_hook`] has been called, every panic of the process is counted ([`panic_count`],
//! [`refusal_count`]) and reported, no matter on which thread it occurred or which code caught it.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Maximum number of printed panics, because a defect that affects every connection must not fill a disk.
const MAX_REPORTED_PANICS: u64 = 10;

/// Delay before a loop that panicked is restarted, since it may panic again at once.
const RESTART_DELAY: Duration = Duration::from_millis(50);

static PANIC_COUNT: AtomicU64 = AtomicU64::new(0);
static REFUSAL_COUNT: AtomicU64 = AtomicU64::new(0);

/// The cause of a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicCause {
    /// A defect of this program.
    Defect,
    /// The system denied a library a thread or memory.
    Refusal,
    /// Like [`PanicCause::Refusal`], but the process cannot continue: the alternative signal stack of a new thread
    /// could not be allocated, and a panic at that point cannot unwind.
    FatalRefusal,
    /// The system no longer lets the asynchronous runtime poll its sockets, so everything that uses the runtime hangs.
    RuntimeFailure,
}

thread_local! {
    /// The message of this thread's last panic.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The description of a panic: thread, source location and message, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PanicDescription(String);

/// Installs a panic hook that counts every panic and calls `report` with the first few, on the panicking thread.
pub fn install_panic_hook(report: fn(PanicCause, &str)) {
    panic::set_hook(Box::new(move |info| {
        let text = describe_panic(info);
        let message = payload_message(info.payload());
        let file = info.location().map_or("", panic::Location::file);
        let cause = PanicCause::classify_panic(file, &message);
        let counter = match cause {
            PanicCause::Defect => &PANIC_COUNT,
            PanicCause::Refusal | PanicCause::FatalRefusal | PanicCause::RuntimeFailure => {
                &REFUSAL_COUNT
            }
        };
        let reported = counter.fetch_add(1, Ordering::Relaxed) < MAX_REPORTED_PANICS;
        if reported || matches!(cause, PanicCause::FatalRefusal | PanicCause::RuntimeFailure) {
            let trace = Backtrace::capture();
            match trace.status() {
                // The user requested a backtrace with RUST_BACKTRACE.
                BacktraceStatus::Captured => report(cause, &format!("{text}\n{trace}")),
                _ if cause == PanicCause::Defect => report(cause, &text),
                _ => report(cause, &message),
            }
        }
        // Storing the text fails on a thread whose thread-local variables are already destroyed.
        let _ = LAST_PANIC.try_with(|last| last.replace(Some(text)));
    }));
}

/// Returns the number of panics in this process, plus those that other processes reported ([`count_panic_of_other_process`]).
pub fn panic_count() -> u64 {
    PANIC_COUNT.load(Ordering::Relaxed)
}

/// Returns the number of panics whose cause was a refusal by the system.
pub fn refusal_count() -> u64 {
    REFUSAL_COUNT.load(Ordering::Relaxed)
}

/// Counts a defect that was reported by another process of this run.
pub fn count_panic_of_other_process() {
    PANIC_COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Runs `work` and catches a panic in it. Borrowed state may then be inconsistent: the caller must discard or
/// rebuild it.
///
/// # Errors
/// Returns the description of the panic if `work` panicked.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, PanicDescription> {
    panic::catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| PanicDescription::from_panic_payload(&*payload))
}

/// Runs `work` with `state` until it returns without a panic. After each panic, `anew` resets the parts of `state` that
/// may be inconsistent.
pub fn restart_on_panic<S, T>(state: &mut S, work: fn(&mut S) -> T, anew: fn(&mut S)) -> T {
    loop {
        if let Ok(done) = catch_panic(|| work(state)) {
            return done;
        }
        anew(state);
        thread::sleep(RESTART_DELAY);
    }
}

impl PanicCause {
    /// Returns the cause of a panic with `message` that was raised in the source file `file`.
    fn classify_panic(file: &str, message: &str) -> PanicCause {
        let is_of_library = ["/library/std/", "/tokio-"]
            .iter()
            .any(|part| file.contains(part));
        let is_of_system = ["(os error ", "Os { code", "OS can't spawn"]
            .iter()
            .any(|part| message.contains(part));
        match is_of_library && is_of_system {
            false => PanicCause::Defect,
            true if message.contains("alternative stack") => PanicCause::FatalRefusal,
            true if message.contains("polling the I/O driver") => PanicCause::RuntimeFailure,
            true => PanicCause::Refusal,
        }
    }
}

impl PanicDescription {
    fn from_panic_payload(payload: &(dyn Any + Send)) -> PanicDescription {
        let reported = LAST_PANIC.with(|last| last.take());
        PanicDescription(reported.unwrap_or_else(|| {
            let message = payload_message(payload);
            format!("{} panicked: {message}", thread_name(&thread::current()))
        }))
    }
}

fn describe_panic(info: &PanicHookInfo<'_>) -> String {
    let place = info
        .location()
        .map_or_else(String::new, |at| format!(" at {at}"));
    let message = payload_message(info.payload());
    format!(
        "{} panicked{place}: {message}",
        thread_name(&thread::current())
    )
}

fn thread_name(thread: &thread::Thread) -> &str {
    thread.name().unwrap_or("a thread")
}

/// Returns the panic's message on one line, because it is written to line-based files.
fn payload_message(payload: &(dyn Any + Send)) -> String {
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
        assert_eq!(restart_on_panic(&mut state, work, |state| state.1 += 1), 3);
        assert_eq!(state, (3, 2));
    }

    #[test]
    fn library_resource_panics_count_as_refusals() {
        let library = "/rustc/59807616/library/std/src";
        for (file, message, cause) in [
            (
                &*format!("{library}/thread/functions.rs"),
                "failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"…\" }",
                PanicCause::Refusal,
            ),
            (
                &*format!("{library}/sys/pal/unix/stack_overflow.rs"),
                "failed to allocate an alternative stack: Cannot allocate memory (os error 12)",
                PanicCause::FatalRefusal,
            ),
            (
                "registry/src/index/tokio-1.48.0/src/runtime/blocking/pool.rs",
                "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
                PanicCause::Refusal,
            ),
            (
                "registry/src/index/tokio-1.48.0/src/runtime/io/driver.rs",
                "unexpected error when polling the I/O driver: Os { code: 22, kind: InvalidInput, message: \"…\" }",
                PanicCause::RuntimeFailure,
            ),
            (
                "crates/plimsoll-engine/src/worker.rs",
                "called `Result::unwrap()` on an `Err` value: Os { code: 11 }",
                PanicCause::Defect,
            ),
            (
                &*format!("{library}/collections/map.rs"),
                "no entry",
                PanicCause::Defect,
            ),
        ] {
            assert_eq!(
                PanicCause::classify_panic(file, message),
                cause,
                "{file}: {message}"
            );
        }
    }

    #[test]
    fn caught_panic_reports_its_message() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        let defect = catch_panic(|| -> u32 { panic!("two\nlines of {}", "text") }).unwrap_err();
        let text = defect.to_string();
        assert!(text.ends_with("panicked: two lines of text"), "{text}");
        let defect = catch_panic(|| panic::panic_any(7)).unwrap_err();
        assert!(defect.to_string().ends_with("no message"), "{defect}");
    }
}
