//! Detects plugin functions that do not return. Such a function blocks every connection of its worker and can't
//! be interrupted, so the process has to end.
//!
//! A worker records when it enters and leaves plugin code, and a watchdog thread compares the records. The
//! thread counts its own sleep intervals instead of reading a clock, so a pause of the whole process does not
//! count as time in the plugin.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::CodecOptions;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A function of a codec plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodecFunction {
    Match,
    Decode,
    Encode,
    Make,
}

/// The functions' names, in the order of [`CodecFunction`].
const FUNCTION_NAMES: [&str; 4] = ["match", "decode", "encode", "make"];

/// One worker's record of its calls into one route's codec.
#[derive(Debug)]
pub(crate) struct CallWatch {
    route: String,
    file: PathBuf,
    limit: Duration,
    /// Incremented on entering and on leaving plugin code: odd while inside.
    steps: AtomicU64,
    function: AtomicU8,
}

impl CallWatch {
    fn new(options: &CodecOptions<'_>) -> CallWatch {
        CallWatch {
            route: options.route.to_owned(),
            file: options.file.map(Path::to_owned).unwrap_or_default(),
            limit: options.timeout,
            steps: AtomicU64::new(0),
            function: AtomicU8::new(0),
        }
    }

    /// Runs `call`, which calls the plugin, and records it. Must be called by one thread only.
    #[inline]
    pub(crate) fn run_watched<T>(&self, function: CodecFunction, call: impl FnOnce() -> T) -> T {
        let steps = self.steps.load(Ordering::Relaxed);
        self.function.store(function as u8, Ordering::Relaxed);
        self.steps.store(steps + 1, Ordering::Release);
        let result = call();
        self.steps.store(steps + 2, Ordering::Release);
        result
    }

    fn stuck_message(&self) -> String {
        let function = self.function.load(Ordering::Relaxed);
        let name = FUNCTION_NAMES.get(usize::from(function)).unwrap_or(&"?");
        format!(
            "route {}: plugin {}: `{name}` has not returned for {:?} (codec_timeout); only ending \
             this process can stop it",
            self.route,
            self.file.display(),
            self.limit
        )
    }
}

/// The records of all workers.
#[derive(Debug, Default)]
pub struct Watchdog {
    watches: Mutex<Vec<Weak<CallWatch>>>,
}

impl Watchdog {
    pub(crate) fn register_watch(&self, options: &CodecOptions<'_>) -> Arc<CallWatch> {
        let watch = Arc::new(CallWatch::new(options));
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&watch));
        watch
    }

    /// Starts the watchdog thread. It calls `report` once, for the first plugin function that exceeds its
    /// limit, and ends.
    ///
    /// # Errors
    /// Returns an error if the thread can't be started.
    pub fn start(
        self: Arc<Watchdog>,
        stop: Arc<AtomicBool>,
        report: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<()> {
        let body = move || {
            // Each worker's record, with its `steps` at the last poll and the time spent in the current call.
            let mut seen: Vec<(Weak<CallWatch>, u64, Duration)> = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(POLL_INTERVAL);
                let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
                let now = watches.clone();
                drop(watches);
                let mut next = Vec::new();
                for watch in &now {
                    let Some(alive) = watch.upgrade() else {
                        continue;
                    };
                    let steps = alive.steps.load(Ordering::Acquire);
                    let before = seen.iter().find(|(known, _, _)| known.ptr_eq(watch));
                    let stays = match before {
                        Some((_, known, stays)) if *known == steps && steps % 2 == 1 => {
                            *stays + POLL_INTERVAL
                        }
                        _ => Duration::ZERO,
                    };
                    if stays >= alive.limit {
                        return report(alive.stuck_message());
                    }
                    next.push((Weak::clone(watch), steps, stays));
                }
                seen = next;
            }
        };
        let thread = thread::Builder::new().name("watchdog".to_owned());
        thread.spawn(body).map(drop)
    }
}
