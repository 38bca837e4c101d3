//! `plimsoll` on a real (pseudo-) terminal.
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]
#![allow(
    dead_code,
    reason = "a test binary uses what it needs of this, and no other part"
)]

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use super::support::MAX_WAIT;

/// `plimsoll` on a terminal of its own.
pub(crate) struct TestTerminal {
    pub(crate) child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: thread::JoinHandle<()>,
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize {
        rows,
        cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

impl TestTerminal {
    pub(crate) fn start(dir: &Path, arguments: &[&str]) -> TestTerminal {
        TestTerminal::start_with_fault(dir, arguments, "")
    }

    /// Starts it with an injected fault.
    pub(crate) fn start_with_fault(dir: &Path, arguments: &[&str], fault: &str) -> TestTerminal {
        let pair = native_pty_system()
            .openpty(size(30, 100))
            .expect("a pseudo-terminal");
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(arguments);
        command.cwd(dir);
        command.env_clear();
        command.env("TERM", "xterm-256color");
        command.env("PLIMSOLL_FAULT", fault);
        let child = pair.slave.spawn_command(command).expect("plimsoll starts");
        drop(pair.slave);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(30, 100, 1_000)));
        let mut from = pair.master.try_clone_reader().expect("a reader");
        let shown = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal hangs up when plimsoll has ended.
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                shown.lock().expect("the screen").process(&bytes[..n]);
            }
        });
        TestTerminal {
            child,
            keys: pair.master.take_writer().expect("a writer"),
            master: pair.master,
            screen,
            reader,
        }
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().expect("the screen").screen().contents()
    }

    pub(crate) fn is_whole_terminal(&self) -> bool {
        self.screen
            .lock()
            .expect("the screen")
            .screen()
            .alternate_screen()
    }

    /// Waits until the screen satisfies a condition.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + MAX_WAIT;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < end, "no {what} in time:\n{text}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys pressed");
        self.keys.flush().expect("keys pressed");
    }

    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        let mut screen = self.screen.lock().expect("the screen");
        screen.screen_mut().set_size(rows, cols);
        self.master.resize(size(rows, cols)).expect("resized");
    }

    /// Returns the exit code and the final screen; the terminal must be restored.
    #[track_caller]
    pub(crate) fn end(mut self) -> (u32, String) {
        let end = Instant::now() + MAX_WAIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            if Instant::now() >= end {
                let _ = self.child.kill();
                panic!("plimsoll did not end:\n{}", self.text());
            }
            thread::sleep(Duration::from_millis(20));
        };
        let modes = self.master.get_termios().expect("a terminal");
        let (local, input) = (modes.local_flags.bits(), modes.input_flags.bits());
        // ECHO | ICANON | ISIG and ICRNL (termios.h of Linux): line input with echo is on again.
        assert_eq!(local & 0o13, 0o13, "the terminal's modes are not restored");
        assert_ne!(input & 0o400, 0, "the terminal's modes are not restored");
        self.reader.join().expect("all is read");
        let screen = self.screen.lock().expect("the screen");
        assert!(
            !screen.screen().alternate_screen(),
            "still on the other screen"
        );
        assert!(!screen.screen().hide_cursor(), "the cursor is hidden");
        (status.exit_code(), screen.screen().contents())
    }
}
