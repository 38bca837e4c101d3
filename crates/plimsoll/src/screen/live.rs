//! The live view: shows a running load on the whole terminal.
//!
//! A thread draws the dashboard when it has changed, about once a second. The thread has a lower priority than the
//! workers, and its CPU time is reported. The terminal is restored however the run ends, including signals and panics.

mod dashboard;
mod draw;

use std::io::{self, BufWriter, Stderr};
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plimsoll_engine::fault;
use plimsoll_engine::host::resources::thread_cpu;
use plimsoll_model::Plan;
use plimsoll_model::runs::run::IntervalRecord;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::process::{Signal, getpid, kill_process, setpriority_process};

use crate::screen::console;
use dashboard::{Dashboard, RunPhase};

/// How often keys, resizes and the end of the run are polled.
const EVENT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Niceness of the drawing thread (nice(2)).
const DRAW_NICENESS: i32 = 10;

/// Whether the terminal is currently switched to the live view.
static TERMINAL_IN_USE: AtomicBool = AtomicBool::new(false);

/// The live view, which occupies the terminal during a run; dropping it restores the terminal.
pub(crate) struct LiveView {
    shared: Arc<LiveViewState>,
    thread: Option<JoinHandle<()>>,
}

/// State shared with the drawing thread.
struct LiveViewState {
    board: Mutex<Dashboard>,
    changed: AtomicBool,
    is_over: AtomicBool,
    /// CPU time of the drawing thread, ns.
    cpu_ns: AtomicU64,
}

impl LiveViewState {
    fn lock_board(&self) -> MutexGuard<'_, Dashboard> {
        // Ignore poisoning: even if a thread has panicked, the figures can still be shown.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_board(&self, how: impl FnOnce(&mut Dashboard)) {
        how(&mut self.lock_board());
        self.changed.store(true, Ordering::Relaxed);
    }
}

impl LiveView {
    /// Switches the terminal to the live view for a run of `plan`. `context` are lines about the progress of the search
    /// or ladder that the run belongs to.
    ///
    /// # Errors
    /// When the terminal can't be switched.
    pub(crate) fn start(plan: &Plan, context: Vec<String>) -> io::Result<LiveView> {
        install_restoring_panic_hook();
        enable_raw_mode()?;
        TERMINAL_IN_USE.store(true, Ordering::SeqCst);
        console::defer_lines();
        let opened = execute!(io::stderr(), EnterAlternateScreen, Hide).and_then(|()| {
            // Buffer each frame so that it is one write, because stderr is unbuffered.
            let out = BufWriter::with_capacity(32 * 1024, io::stderr());
            Terminal::new(CrosstermBackend::new(out))
        });
        let terminal = match opened {
            Ok(terminal) => terminal,
            Err(e) => {
                restore();
                return Err(e);
            }
        };
        let shared = Arc::new(LiveViewState {
            board: Mutex::new(Dashboard::new(plan, context, Duration::ZERO)),
            changed: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
        });
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("live view".into())
            .spawn(move || run_view(terminal, &seen))
            .inspect_err(|_| restore())?;
        Ok(LiveView {
            shared,
            thread: Some(thread),
        })
    }

    /// Shows the next run of a search or ladder in place of the last one.
    pub(crate) fn show_next_run(&self, plan: &Plan, context: Vec<String>) {
        let cpu = self.cpu_time();
        self.shared
            .update_board(|board| *board = Dashboard::new(plan, context, cpu));
    }

    pub(crate) fn show_connecting(&self, open: u64, wanted: u64) {
        self.shared
            .update_board(|board| board.phase = RunPhase::Connecting { open, wanted });
    }

    pub(crate) fn add_interval(&self, interval: &IntervalRecord) {
        let cpu = self.cpu_time();
        self.shared
            .update_board(|board| board.add_interval(interval, cpu));
    }

    /// Returns the CPU time that the drawing thread has used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.shared.cpu_ns.load(Ordering::Relaxed))
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the drawing thread, which the panic hook has already reported.
            let _ = thread.join();
        }
        restore();
    }
}

/// Restores the terminal if it shows the live view, and prints the lines held back.
pub(crate) fn restore() {
    if !TERMINAL_IN_USE.swap(false, Ordering::SeqCst) {
        return;
    }
    // Ignore errors, which mean that the terminal has been closed.
    let _ = execute!(io::stderr(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    console::release_lines();
}

/// Installs a panic hook that restores the terminal before a panic's message is printed.
fn install_restoring_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

/// Runs the drawing thread: draws changes and handles keys until the run is over.
fn run_view(mut terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>, shared: &LiveViewState) {
    // On Linux this is the calling thread's own priority, not the process's (setpriority(2)).
    let _ = setpriority_process(None, DRAW_NICENESS);
    let mut asked = false;
    let mut shown = 0;
    while !shared.is_over.load(Ordering::Relaxed) && TERMINAL_IN_USE.load(Ordering::SeqCst) {
        let lines = console::held_lines();
        if shared.changed.swap(false, Ordering::Relaxed) || lines.len() != shown {
            fault::point("live");
            shown = lines.len();
            let board = shared.lock_board().clone();
            if terminal
                .draw(|frame| draw::draw(frame, &board, &lines))
                .is_err()
            {
                return;
            }
            let used_ns = thread_cpu().as_nanos() as u64;
            shared.cpu_ns.store(used_ns, Ordering::Relaxed);
        }
        match event::poll(EVENT_POLL_INTERVAL) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(_) => return,
        }
        match event::read() {
            Ok(Event::Resize(..)) => shared.changed.store(true, Ordering::Relaxed),
            // Act only on the first press: key repeat must not count as a second request.
            Ok(Event::Key(key)) if is_quit_key(key) && !asked => {
                asked = true;
                raise_interrupt();
            }
            Ok(Event::Key(key)) if is_interrupt_key(key) => raise_interrupt(),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn is_quit_key(key: KeyEvent) -> bool {
    key.kind == KeyEventKind::Press
        && matches!(key.code, KeyCode::Char('q' | 'Q'))
        && key.modifiers.difference(KeyModifiers::SHIFT).is_empty()
}

/// Returns whether the key is Ctrl-C, which arrives as a key because raw mode disables its signal.
fn is_interrupt_key(key: KeyEvent) -> bool {
    key.kind == KeyEventKind::Press
        && key.code == KeyCode::Char('c')
        && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Raises SIGINT, so that keys and signals stop the run in the same way.
fn raise_interrupt() {
    let _ = kill_process(getpid(), Signal::INT);
}
