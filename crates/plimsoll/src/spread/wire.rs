//! What the processes of one run say to each other: a line a message, on the pipes of the
//! process that was started.
//!
//! Both ends are the same program, so there is no version; a line that is no message ends
//! the run.

use std::time::Duration;

use plimsoll_engine::worker::Established;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::{IntervalRecord, NegotiatedTls};
use plimsoll_model::{Outcome, Time};
use serde::{Deserialize, Serialize};

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("keys are strings and numbers whole")
}

/// How often a process says that it is there, from its first moment on.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);

/// From a process to the one that started it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// So many connections are up.
    Connecting(u64),
    /// Its connections are up, or have failed once.
    Ready(Ready),
    /// A call, which is in the interval that follows.
    Request(RequestRecord),
    Interval(Box<IntervalRecord>),
    Finished(End),
    /// It can't go on.
    Failed(String),
    /// The same, for a reason that is in this program.
    Defect(String),
    /// It is there, and has nothing else to say: see [`HEARTBEAT`].
    Alive,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) workers: u32,
    pub(crate) open: u32,
    pub(crate) failed: u32,
    /// The code of the first failure, and what was said of it.
    pub(crate) failure: Option<(String, String)>,
}

impl Ready {
    pub(crate) fn of(established: &Established, workers: u32) -> Ready {
        let failure = established.failure.as_ref();
        Ready {
            workers,
            open: established.open,
            failed: established.failed,
            failure: failure.map(|(outcome, text)| (outcome.code().to_owned(), text.clone())),
        }
    }

    pub(crate) fn outcome(&self) -> Option<(Outcome, String)> {
        let (code, detail) = self.failure.as_ref()?;
        let outcome = Outcome::from_code(code).unwrap_or(Outcome::ConnectFailed);
        Some((outcome, detail.clone()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// Before its time, and whether or not it was asked to.
    pub(crate) interrupted: bool,
    pub(crate) negotiated: Option<NegotiatedTls>,
}

impl Said {
    pub(crate) fn to_line(&self) -> String {
        match self {
            Said::Connecting(open) => format!("connecting {open}"),
            Said::Ready(ready) => format!("ready {}", json(ready)),
            Said::Request(request) => format!("request {}", request.to_line()),
            Said::Interval(interval) => format!("interval {}", interval.to_line()),
            Said::Finished(end) => format!("finished {}", json(end)),
            Said::Failed(problem) => format!("failed {}", json(problem)),
            Said::Defect(problem) => format!("defect {}", json(problem)),
            Said::Alive => "alive".to_owned(),
        }
    }

    /// # Errors
    /// Where the line is no message: what it was.
    pub(crate) fn from_line(line: &str) -> Result<Said, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let said = match word {
            "connecting" => rest
                .parse()
                .map(Said::Connecting)
                .map_err(|e| e.to_string()),
            "ready" => serde_json::from_str(rest)
                .map(Said::Ready)
                .map_err(|e| e.to_string()),
            "request" => RequestRecord::from_line(rest).map(Said::Request),
            "interval" => IntervalRecord::from_line(rest).map(|i| Said::Interval(Box::new(i))),
            "finished" => serde_json::from_str(rest)
                .map(Said::Finished)
                .map_err(|e| e.to_string()),
            "failed" => serde_json::from_str(rest)
                .map(Said::Failed)
                .map_err(|e| e.to_string()),
            "defect" => serde_json::from_str(rest)
                .map(Said::Defect)
                .map_err(|e| e.to_string()),
            "alive" if rest.is_empty() => Ok(Said::Alive),
            _ => Err("no such message".to_owned()),
        };
        said.map_err(|problem| {
            let begin: String = line.chars().take(80).collect();
            format!("it said {begin:?}: {problem}")
        })
    }
}

/// To a process, from the one that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The load begins then, on the clock that all share.
    Begin(Time),
    /// The run is to end: the first time gracefully, the second at once.
    Stop,
}

impl Told {
    pub(crate) fn to_line(self) -> String {
        match self {
            Told::Begin(at) => format!("begin {}", at.0),
            Told::Stop => "stop".to_owned(),
        }
    }

    pub(crate) fn from_line(line: &str) -> Option<Told> {
        match line.split_once(' ') {
            Some(("begin", at)) => at.parse().ok().map(|ns| Told::Begin(Time(ns))),
            None if line == "stop" => Some(Told::Stop),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_read_as_it_was_said() {
        let messages = [
            Said::Connecting(7),
            Said::Ready(Ready {
                workers: 2,
                open: 10,
                failed: 1,
                failure: Some(("CONNECT_REFUSED".into(), "a \"word\"\nmore".into())),
            }),
            Said::Interval(Box::new(IntervalRecord {
                index: 3,
                length: Duration::from_secs(1),
                ..IntervalRecord::default()
            })),
            Said::Finished(End {
                interrupted: true,
                negotiated: Some(NegotiatedTls::default()),
            }),
            Said::Failed("no\nroom".into()),
            Said::Defect("a\npanic".into()),
            Said::Alive,
        ];
        for message in messages {
            let line = message.to_line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(Said::from_line(&line), Ok(message));
        }
        for told in [Told::Begin(Time(12)), Told::Stop] {
            assert_eq!(Told::from_line(&told.to_line()), Some(told));
        }
    }

    #[test]
    fn what_is_no_message_is_told() {
        for line in [
            "",
            "hello",
            "connecting many",
            "ready {}",
            "interval {",
            "alive still",
        ] {
            let problem = Said::from_line(line).unwrap_err();
            assert!(problem.starts_with("it said"), "{problem}");
        }
        for line in ["", "begin", "begin soon", "stop now"] {
            assert_eq!(Told::from_line(line), None);
        }
    }
}
