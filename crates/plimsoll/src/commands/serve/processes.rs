//! Serves from several processes that share one port (`SO_REUSEPORT`): each has its own file descriptors, and the
//! kernel distributes connections among them.
//!
//! The processes run this program with the same arguments. They stop when their standard input ends, so none outlives
//! the parent. Each first reads the ticket seed from standard input, so that any process can resume TLS sessions of the
//! others. If one process dies, the others are stopped: a server that answers only some of its clients must not be
//! measured as if it were complete.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc::{self, Sender};

use plimsoll_engine::defect;
use plimsoll_serving::TicketSeed;

use super::listen::ListenFlags;
use crate::failure::{Exit, Failure};
use crate::screen::defects;
use crate::system::child::PipedChild;
use crate::system::stopping::{self, ShutdownMode};

/// Flags of the parent that the child processes get with other values, or not at all.
const REPLACED_FLAGS: [&str; 2] = ["--listen", "--processes"];
const REPLACED_SWITCHES: [&str; 3] = ["--json", "--reuse-port", "--tickets-from-input"];

/// An event of the server processes or a signal.
enum ProcessEvent {
    /// A process printed a line.
    Line(String),
    /// A process has ended, or closed its output.
    Exited(usize),
    StopRequested(ShutdownMode),
}

/// Runs the server processes until a signal arrives.
pub(super) fn serve(name: &str, listen: &ListenFlags) -> Result<Exit, Failure> {
    let reserved = listen.reserve_port()?;
    let address = reserved.address();
    let words = child_arguments(std::env::args_os().skip(1).collect(), name, address)?;
    // With a shared seed, any process can resume TLS sessions of the others.
    let tickets = TicketSeed::random().map_err(Failure::error)?;
    let (sender, heard) = mpsc::channel();
    let wished = sender.clone();
    stopping::on_signal(move |wish| {
        // Never fails: the receiver is dropped only after all processes have ended.
        let _ = wished.send(ProcessEvent::StopRequested(wish));
    })?;
    let of = usize::from(listen.processes);
    let mut processes = Vec::new();
    // Start the processes one by one, so that a failure to listen is reported only once.
    while processes.len() < of {
        let index = processes.len();
        processes.push(start_server(&words, &tickets, index, &sender)?);
        match heard.recv() {
            Ok(ProcessEvent::Line(_)) => {}
            Ok(ProcessEvent::Exited(which)) => {
                return Err(exit_failure(which, of, "did not start"));
            }
            Ok(ProcessEvent::StopRequested(_)) | Err(_) => return Ok(Exit::Interrupted),
        }
    }
    listen.announce(name, &address.into(), &[])?;

    let mut counts: Vec<(String, u64)> = Vec::new();
    let mut stopping = false;
    let mut left = of;
    while left > 0 {
        match heard.recv() {
            Ok(ProcessEvent::Line(line)) => add_counts(&mut counts, &line),
            Ok(ProcessEvent::Exited(index)) => {
                if !stopping {
                    return Err(exit_failure(
                        index,
                        of,
                        "exited, and the others were stopped",
                    ));
                }
                left -= 1;
            }
            Ok(ProcessEvent::StopRequested(ShutdownMode::Graceful)) => {
                stopping = true;
                for process in &mut processes {
                    drop(process.stdin.take());
                }
            }
            Ok(ProcessEvent::StopRequested(ShutdownMode::Immediate)) | Err(_) => {
                return Ok(Exit::Interrupted);
            }
        }
    }
    let counts: Vec<(&str, u64)> = counts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    listen.print_counts(&counts)?;
    Ok(Exit::Done)
}

fn exit_failure(index: usize, of: usize, how: &str) -> Failure {
    Failure::error_with_help(
        format_args!("--processes: process {} of {of} {how}", index + 1),
        "its output is above; a process that was killed printed nothing",
    )
}

/// Returns the arguments of the child processes: the arguments of this process, with the flags about the port replaced.
fn child_arguments(
    typed: Vec<OsString>,
    name: &str,
    address: SocketAddr,
) -> Result<Vec<OsString>, Failure> {
    let serve = typed.iter().position(|word| word == "serve");
    let named = serve.and_then(|serve| {
        let after = typed[serve..].iter().position(|word| word == name)?;
        Some(serve + after)
    });
    let Some(named) = named else {
        return Err(Failure::error(
            "--processes: the command line has no `serve` and no server in it",
        ));
    };
    let mut words: Vec<OsString> = typed[..=named].to_vec();
    let address = address.to_string();
    let own = [
        "--listen",
        &address,
        "--processes",
        "1",
        "--reuse-port",
        "--tickets-from-input",
    ];
    words.extend(own.map(OsString::from));
    let mut rest = typed[named + 1..].iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        let flag = text.split('=').next().unwrap_or_default();
        if text == "--" {
            words.push(word.clone());
            words.extend(rest.by_ref().cloned());
        } else if REPLACED_FLAGS.contains(&flag) {
            if !text.contains('=') {
                rest.next();
            }
        } else if !REPLACED_SWITCHES.contains(&flag) {
            words.push(word.clone());
        }
    }
    Ok(words)
}

/// Adds a line of counts, such as `answered 12, connections 3`. Counts are summed. For peaks the maximum over all
/// processes is kept, and labelled as the figure of one process.
fn add_counts(counts: &mut Vec<(String, u64)>, line: &str) {
    for word in line.split(", ") {
        let Some((name, n)) = word
            .rsplit_once(' ')
            .and_then(|(name, n)| Some((name, n.parse::<u64>().ok()?)))
        else {
            continue;
        };
        let is_most = name.starts_with("most ") || name.ends_with(" at once");
        let name = if is_most {
            format!("{name} in a process")
        } else {
            name.to_owned()
        };
        if name == defects::PANICS_COUNTER && n > 0 {
            defect::count_panic_of_other_process();
        }
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) if is_most => *sum = (*sum).max(n),
            Some((_, sum)) => *sum += n,
            None => counts.push((name, n)),
        }
    }
}

/// Starts a server process. It stops at the end of its standard input.
fn start_server(
    words: &[OsString],
    tickets: &TicketSeed,
    index: usize,
    sender: &Sender<ProcessEvent>,
) -> Result<PipedChild, Failure> {
    let failed = |e: io::Error| Failure::error(format_args!("--processes: can't start one: {e}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // The processes must not print JSON, because their text output is parsed here.
    let command = stopping::stop_with_parent(&mut command).env("PLIMSOLL_JSON", "false");
    let sender = sender.clone();
    // Sending fails once the receiver is dropped, when serving has ended.
    let heard = move |line| match line {
        Some(Ok(line)) => sender.send(ProcessEvent::Line(line)).is_ok(),
        Some(Err(_)) => false,
        None => sender.send(ProcessEvent::Exited(index)).is_ok(),
    };
    let mut child = PipedChild::start(command.args(words), heard).map_err(failed)?;
    if let Some(stdin) = &mut child.stdin {
        // If the process has already exited, the reading thread reports that.
        let _ = stdin.write_all(tickets.as_bytes());
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(typed: &str) -> String {
        let typed = typed.split(' ').map(OsString::from).collect();
        let address = "127.0.0.1:7".parse().expect("an address");
        let words = child_arguments(typed, "files", address).expect("a server's");
        let words: Vec<String> = words
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn child_arguments_override_listen_and_processes() {
        let own = "--listen 127.0.0.1:7 --processes 1 --reuse-port --tickets-from-input";
        assert_eq!(
            words("-v serve files site --listen 127.0.0.1:0 --workers 2 --processes 3 --json"),
            format!("-v serve files {own} site --workers 2")
        );
        assert_eq!(
            words("serve -q files --listen=[::]:0 --processes=3 --reuse-port --drain=1s -- --json"),
            format!("serve -q files {own} --drain=1s -- --json")
        );
    }

    #[test]
    fn merge_sums_counts_but_not_maxima() {
        let mut counts = Vec::new();
        add_counts(
            &mut counts,
            "processed 10, received 12, connections 3, connections at once 2",
        );
        add_counts(
            &mut counts,
            "processed 0, refused 1, connections 4, connections at once 4",
        );
        let printed: Vec<String> = counts
            .iter()
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        assert_eq!(
            printed.join(", "),
            "processed 10, received 12, connections 7, connections at once in a process 4, refused 1"
        );
    }
}
