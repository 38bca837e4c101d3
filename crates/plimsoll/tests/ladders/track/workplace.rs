//! A repository of a service in Python, and the measurement of its versions.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use plimsoll_model::comparisons::track::TrackRecord;

use crate::support::{Place, text};

/// Serves empty answers after a pause.
pub(crate) const SERVICE: &str = r#"import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAUSE_S = 0.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(PAUSE_S)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

/// A load that decides in its first seconds: the versions differ by 50 ms or not at all, and 10 ms are allowed.
pub(crate) const LOAD: [&str; 13] = [
    "http://{address}/",
    "--rate",
    "200/s",
    "--batch",
    "5",
    "--connections",
    "20",
    "--duration",
    "2s",
    "--budget",
    "40s",
    "--fail-if",
    "p50 +10ms",
];

/// A folder with a repository of the service, and one for temporary files.
pub(crate) struct Workplace {
    pub(crate) place: Place,
}

impl Workplace {
    pub(crate) fn new() -> Workplace {
        let place = Place::new();
        for folder in ["service", "tmp"] {
            fs::create_dir(place.path(folder)).unwrap();
        }
        Workplace { place }
    }

    /// Returns a place whose repository has one commit of the service.
    pub(crate) fn with_repository() -> Workplace {
        let work = Workplace::new();
        work.git(&["init", "--quiet", "--initial-branch", "main"]);
        work.commit("serve empty answers", SERVICE);
        work
    }

    pub(crate) fn service(&self) -> PathBuf {
        self.place.path("service")
    }

    pub(crate) fn git(&self, words: &[&str]) -> String {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
        let mut command = Command::new("git");
        command
            .args(identity)
            .args(words)
            .current_dir(self.service());
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout).trim().to_owned()
    }

    pub(crate) fn write(&self, program: &str) {
        fs::write(self.service().join("server.py"), program).unwrap();
    }

    /// Commits the program; returns the commit's id.
    pub(crate) fn commit(&self, subject: &str, program: &str) -> String {
        self.write(program);
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", subject]);
        self.git(&["rev-parse", "HEAD"])
    }

    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        self.command_with(flags, &LOAD)
    }

    pub(crate) fn command_with(&self, flags: &[&str], load: &[&str]) -> Command {
        let mut command = self.place.command(&["track"]);
        command
            .args(flags)
            .args(load)
            .arg("--out")
            .arg(self.place.path("result"))
            .current_dir(self.service())
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("TMPDIR", self.place.path("tmp"));
        command
    }

    pub(crate) fn track(&self, flags: &[&str]) -> Output {
        self.command(flags).output().unwrap()
    }

    pub(crate) fn record(&self) -> TrackRecord {
        TrackRecord::load(&self.place.path("result")).unwrap()
    }

    /// No work tree and no temporary file is left, and the repository is as it was.
    #[track_caller]
    pub(crate) fn assert_clean(&self, status: &str) {
        let trees = self.git(&["worktree", "list"]);
        assert_eq!(trees.lines().count(), 1, "{trees}");
        let left = fs::read_dir(self.place.path("tmp")).unwrap().count();
        assert_eq!(left, 0, "temporary files are left");
        assert_eq!(self.git(&["status", "--porcelain"]), status);
    }

    /// Returns the ids of processes whose command lines contain the path of this place.
    pub(crate) fn processes(&self) -> Vec<String> {
        let marker = self.place.path("marker").display().to_string();
        let named = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&marker)
        });
        named
            .map(|entry| entry.file_name().display().to_string())
            .collect()
    }

    /// Returns a command that serves, which [`Workplace::processes`] finds.
    pub(crate) fn marked(&self, command: &str) -> String {
        format!("{command} {}", self.place.path("marker").display())
    }
}

pub(crate) fn slower(program: &str) -> String {
    program.replace("PAUSE_S = 0.0", "PAUSE_S = 0.05")
}

/// Returns the messages without the line breaks that fit them to a terminal.
pub(crate) fn unwrapped(output: &Output) -> String {
    let stderr = text(&output.stderr).replace('│', " ");
    stderr.split_whitespace().collect::<Vec<&str>>().join(" ")
}

#[track_caller]
pub(crate) fn assert_code(output: &Output, code: i32) {
    let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{printed}");
}
