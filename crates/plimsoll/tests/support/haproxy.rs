//! HAProxy on a free port, as a peer of tests.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{MAX_WAIT, Place};

/// Returns the command of HAProxy, wherever it is installed.
pub(crate) fn command() -> Command {
    let program = [
        "/usr/sbin/haproxy",
        "/usr/local/sbin/haproxy",
        "/usr/bin/haproxy",
    ];
    let mut programs = program.into_iter();
    let program = programs.find(|path| fs::exists(path).unwrap_or(false));
    Command::new(program.expect("haproxy is missing: run `make setup`, which installs it"))
}

/// HAProxy in the foreground, killed when dropped.
pub(crate) struct Haproxy(Child);

impl Haproxy {
    /// Starts it with `config` after the defaults of `mode` (`http`, `tcp`); waits until it listens
    /// on `port`.
    pub(crate) fn start(place: &Place, mode: &str, config: &str, port: u16) -> Haproxy {
        let config = format!(
            "defaults\n mode {mode}\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n{config}"
        );
        fs::write(place.path("haproxy.cfg"), config).expect("a file");
        let child = command()
            .args(["-db", "-f", "haproxy.cfg"])
            .current_dir(place.path(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("haproxy starts");
        let haproxy = Haproxy(child);
        let end = Instant::now() + MAX_WAIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "haproxy does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        haproxy
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
