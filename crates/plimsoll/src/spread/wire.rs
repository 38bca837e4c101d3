//! The messages between the processes of one run: a line each, on the pipes of the
//! process that was started.
//!
//! Both ends are the same program, so there is no version; a line that is no message ends
//! the run.

use std::time::Duration;

use plimsoll_engine::worker::Established;
use plimsoll_engine::{Finished, Observation};
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::{IntervalRecord, NegotiatedTls};
use plimsoll_model::{Outcome, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("keys are strings and numbers whole")
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// How often a process sends a sign of life, from its first moment on.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);

/// From a process to the one that started it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
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
    /// It is there, and has nothing else to report: see [`HEARTBEAT`].
    Alive,
}

/// Reports a load to the process that leads it: what it sends.
pub(crate) fn messages(event: &Observation<'_>, mut send: impl FnMut(Message)) {
    match event {
        Observation::Connecting { open, .. } => send(Message::Connecting(*open)),
        Observation::Started { .. } | Observation::Shards(_) => {}
        Observation::Interval(interval, requests) => {
            for request in *requests {
                send(Message::Request(request.clone()));
            }
            send(Message::Interval(Box::new((*interval).clone())));
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) workers: u32,
    pub(crate) open: u32,
    pub(crate) failed: u32,
    /// The code of the first failure, and its text.
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

impl End {
    pub(crate) fn of(finished: Finished) -> End {
        End {
            interrupted: finished.interrupted,
            negotiated: finished.negotiated,
        }
    }

    pub(crate) fn interrupted() -> End {
        End {
            interrupted: true,
            negotiated: None,
        }
    }
}

impl Message {
    pub(crate) fn to_line(&self) -> String {
        match self {
            Message::Connecting(open) => format!("connecting {open}"),
            Message::Ready(ready) => format!("ready {}", json(ready)),
            Message::Request(request) => format!("request {}", request.to_line()),
            Message::Interval(interval) => format!("interval {}", interval.to_line()),
            Message::Finished(end) => format!("finished {}", json(end)),
            Message::Failed(problem) => format!("failed {}", json(problem)),
            Message::Defect(problem) => format!("defect {}", json(problem)),
            Message::Alive => "alive".to_owned(),
        }
    }

    /// # Errors
    /// Where the line is no message: what it was.
    pub(crate) fn from_line(line: &str) -> Result<Message, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let message = match word {
            "connecting" => read(rest).map(Message::Connecting),
            "ready" => read(rest).map(Message::Ready),
            "request" => RequestRecord::from_line(rest).map(Message::Request),
            "interval" => IntervalRecord::from_line(rest).map(|i| Message::Interval(Box::new(i))),
            "finished" => read(rest).map(Message::Finished),
            "failed" => read(rest).map(Message::Failed),
            "defect" => read(rest).map(Message::Defect),
            "alive" if rest.is_empty() => Ok(Message::Alive),
            _ => Err("no such message".to_owned()),
        };
        message.map_err(|problem| {
            let begin: String = line.chars().take(80).collect();
            format!("it sent {begin:?}: {problem}")
        })
    }
}

/// To a process, from the one that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The load begins then, on the clock that all share.
    Begin(Time),
    /// The run is to end: the first time gracefully, the second at once.
    Stop,
}

impl Order {
    pub(crate) fn to_line(self) -> String {
        match self {
            Order::Begin(at) => format!("begin {}", at.0),
            Order::Stop => "stop".to_owned(),
        }
    }

    pub(crate) fn from_line(line: &str) -> Option<Order> {
        match line.split_once(' ') {
            Some(("begin", at)) => at.parse().ok().map(|ns| Order::Begin(Time(ns))),
            None if line == "stop" => Some(Order::Stop),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_read_as_it_was_sent() {
        let messages = [
            Message::Connecting(7),
            Message::Ready(Ready {
                workers: 2,
                open: 10,
                failed: 1,
                failure: Some(("CONNECT_REFUSED".into(), "a \"word\"\nmore".into())),
            }),
            Message::Interval(Box::new(IntervalRecord {
                index: 3,
                length: Duration::from_secs(1),
                ..IntervalRecord::default()
            })),
            Message::Finished(End {
                interrupted: true,
                negotiated: Some(NegotiatedTls::default()),
            }),
            Message::Failed("no\nroom".into()),
            Message::Defect("a\npanic".into()),
            Message::Alive,
        ];
        for message in messages {
            let line = message.to_line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(Message::from_line(&line), Ok(message));
        }
        for order in [Order::Begin(Time(12)), Order::Stop] {
            assert_eq!(Order::from_line(&order.to_line()), Some(order));
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for line in [
            "",
            "hello",
            "connecting many",
            "ready {}",
            "interval {",
            "alive still",
        ] {
            let problem = Message::from_line(line).unwrap_err();
            assert!(problem.starts_with("it sent"), "{problem}");
        }
        for line in ["", "begin", "begin soon", "stop now"] {
            assert_eq!(Order::from_line(line), None);
        }
    }
}
