//! Panics. Each is a defect of this program, and none ends what others do: a loop is run by
//! [`caught`], its neighbours go on, and the process says at its end that there was one.
//!
//! Invariant: every panic of the process is counted ([`seen`]) and reported, whichever thread it
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
const PAUSE: Duration = Duration::from_millis(50);

static SEEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The message of this thread's last panic.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The text of a panic: thread, place and message, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(String);

/// Counts every panic from here on, and calls `report` with the first few, on the thread that
/// panics.
pub fn watch(report: fn(&str)) {
    panic::set_hook(Box::new(move |info| {
        let text = text(info);
        let reported = SEEN.fetch_add(1, Ordering::Relaxed) < MAX_REPORTED;
        if reported {
            let trace = Backtrace::capture();
            match trace.status() {
                // Asked for with RUST_BACKTRACE.
                BacktraceStatus::Captured => report(&format!("{text}\n{trace}")),
                _ => report(&text),
            }
        }
        // A thread that is about to end has no place for it any more.
        let _ = LAST.try_with(|last| last.replace(Some(text)));
    }));
}

/// How many panics there were, here and in processes that reported theirs ([`note`]).
pub fn seen() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

/// Another process that belongs to this one has reported a defect.
pub fn note() {
    SEEN.fetch_add(1, Ordering::Relaxed);
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
        thread::sleep(PAUSE);
    }
}

impl Defect {
    fn of(payload: &(dyn Any + Send)) -> Defect {
        let reported = LAST.with(|last| last.take());
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
    fn a_loop_goes_on_after_panics() {
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
    fn a_panic_ends_the_work_and_says_what_it_was() {
        assert_eq!(caught(|| 7), Ok(7));
        let defect = caught(|| -> u32 { panic!("two\nlines of {}", "text") }).unwrap_err();
        let text = defect.to_string();
        assert!(text.ends_with("panicked: two lines of text"), "{text}");
        let defect = caught(|| panic::panic_any(7)).unwrap_err();
        assert!(defect.to_string().ends_with("no message"), "{defect}");
    }
}
