//! Defines the messages between the processes of one run: one JSON line each, on the pipes of the child process.
//!
//! Both ends are the same binary, so the format has no version. A line that is not a message ends the run.

use std::time::Duration;

use plimsoll_engine::worker::Established;
use plimsoll_engine::{Finished, Observation};
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::{IntervalRecord, NegotiatedTls};
use plimsoll_model::{Outcome, Time};
use serde::{Deserialize, Serialize};

/// How often a process sends a heartbeat, from its start on.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// A message from a process to its supervisor, or from a shard to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// Number of open connections so far.
    Connecting(u64),
    /// Every connection has been opened or has failed once.
    Ready(Ready),
    /// A call of the interval that follows.
    Request(RequestRecord),
    Interval(Box<IntervalRecord>),
    Finished(End),
    /// The sender can't continue.
    Failed(String),
    /// The sender can't continue because of a bug in this program.
    Defect(String),
    /// Heartbeat of a sender with nothing else to report: see
    Alive,
    /// A shard has measured its clock offset.
    Clock(Offset),
}

/// Offset of the store's clock from a shard's clock, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offset {
    pub(crate) offset_us: i64,
    pub(crate) uncertainty_us: u64,
}

/// Converts an observation into messages for the supervisor and sends them.
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

/// Reports that a source's connections are up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) workers: u32,
    pub(crate) open: u32,
    pub(crate) failed: u32,
    /// The first connection failure and its description.
    pub(crate) failure: Option<(Outcome, String)>,
}

impl Ready {
    pub(crate) fn of(established: &Established, workers: u32) -> Ready {
        Ready {
            workers,
            open: established.open,
            failed: established.failed,
            failure: established.failure.clone(),
        }
    }
}

/// Reports that a source has finished its part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// Whether the load ended before its planned end, requested or not.
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
        serde_json::to_string(self).expect("keys are strings and numbers whole")
    }

    /// # Errors
    /// When the line is not a message; the error quotes it.
    pub(crate) fn from_line(line: &str) -> Result<Message, String> {
        serde_json::from_str(line).map_err(|problem| {
            let begin: String = line.chars().take(80).collect();
            format!("it sent {begin:?}: {problem}")
        })
    }
}

/// A message from the supervisor to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Start time of the load, on the clock that all processes share.
    Begin(Time),
    /// Stop request: the first is graceful, the second immediate.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_round_trips() {
        let messages = [
            Message::Connecting(7),
            Message::Ready(Ready {
                workers: 2,
                open: 10,
                failed: 1,
                failure: Some((Outcome::ConnectRefused, "a \"word\"\nmore".into())),
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
            Message::Clock(Offset {
                offset_us: -3,
                uncertainty_us: 7,
            }),
        ];
        for message in messages {
            let line = message.to_line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(Message::from_line(&line), Ok(message));
        }
        for order in [Order::Begin(Time(12)), Order::Stop] {
            let line = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&line).unwrap(), order);
        }
    }

    #[test]
    fn malformed_messages_are_rejected() {
        for line in [
            "",
            "hello",
            "alive",
            r#""alive" still"#,
            r#"{"connecting":"many"}"#,
            r#"{"ready":{}}"#,
            r#"{"interval":{"#,
        ] {
            let problem = Message::from_line(line).unwrap_err();
            assert!(problem.starts_with("it sent"), "{problem}");
        }
        for line in ["", "stop", r#""begin""#, r#"{"begin":"soon"}"#] {
            assert!(serde_json::from_str::<Order>(line).is_err(), "{line}");
        }
    }
}
