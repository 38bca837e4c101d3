//! Defines the messages between the processes of one run. Each message is a line of JSON on a child process's pipe.
//!
//! Both ends are the same binary, so the format has no version. An invalid line ends the run.

use std::time::Duration;

use plimsoll_engine::ConnectFailure;
use plimsoll_engine::worker::ConnectSummary;
use plimsoll_engine::{Observation, RunCompletion};
use plimsoll_model::records::record::RequestRecord;
use plimsoll_model::runs::run::{IntervalRecord, NegotiatedTls};
use plimsoll_model::{Outcome, Time};
use serde::{Deserialize, Serialize};

/// How often a process sends a heartbeat, starting when the process starts.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// A message from a process to its supervisor, or from a shard to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ShardMessage {
    /// Number of open connections so far.
    Connecting(u64),
    /// Every connection has been opened or has failed once.
    Ready(ReadyReport),
    /// A call, which belongs to the interval whose message is sent next.
    Request(RequestRecord),
    Interval(Box<IntervalRecord>),
    Finished(FinishReport),
    /// The sender can't continue.
    Failed(String),
    /// The sender can't continue because of a bug in this program.
    Defect(String),
    /// A heartbeat, sent every [`HEARTBEAT_INTERVAL`].
    Alive,
    /// A shard has measured its clock offset.
    Clock(ClockOffset),
}

/// Offset of the clock of the store (which shards on several machines share) from a shard's clock, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockOffset {
    pub(crate) offset_us: i64,
    pub(crate) uncertainty_us: u64,
}

/// Converts an observation of the load into messages, and passes each to `send`.
pub(crate) fn send_observation(event: &Observation<'_>, mut send: impl FnMut(ShardMessage)) {
    match event {
        Observation::Connecting { open, .. } => send(ShardMessage::Connecting(*open)),
        Observation::Started { .. } | Observation::Shards(_) => {}
        Observation::Interval(interval, requests) => {
            for request in *requests {
                send(ShardMessage::Request(request.clone()));
            }
            send(ShardMessage::Interval(Box::new((*interval).clone())));
        }
    }
}

/// The message form of a [`ConnectFailure`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadyFailure {
    outcome: Outcome,
    detail: String,
    is_after_tls: bool,
    is_at_proxy: bool,
}

impl From<ConnectFailure> for ReadyFailure {
    fn from(failure: ConnectFailure) -> ReadyFailure {
        ReadyFailure {
            outcome: failure.outcome,
            detail: failure.detail,
            is_after_tls: failure.is_after_tls,
            is_at_proxy: failure.is_at_proxy,
        }
    }
}

impl From<ReadyFailure> for ConnectFailure {
    fn from(failure: ReadyFailure) -> ConnectFailure {
        ConnectFailure {
            outcome: failure.outcome,
            detail: failure.detail,
            is_after_tls: failure.is_after_tls,
            is_at_proxy: failure.is_at_proxy,
        }
    }
}

/// The report of a process or shard that its connections are open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadyReport {
    pub(crate) workers: u32,
    pub(crate) open: u32,
    pub(crate) failed: u32,
    /// The first connection failure.
    pub(crate) failure: Option<ReadyFailure>,
}

impl ReadyReport {
    pub(crate) fn new(established: &ConnectSummary, workers: u32) -> ReadyReport {
        ReadyReport {
            workers,
            open: established.open,
            failed: established.failed,
            failure: established.failure.clone().map(ReadyFailure::from),
        }
    }

    pub(crate) fn into_summary(self) -> ConnectSummary {
        ConnectSummary {
            open: self.open,
            failed: self.failed,
            failure: self.failure.map(ConnectFailure::from),
            heap_bytes: None,
        }
    }
}

/// The report of a process or shard that it has finished its share of the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishReport {
    /// Whether the load ended before its planned end, for any reason.
    pub(crate) interrupted: bool,
    pub(crate) negotiated: Option<NegotiatedTls>,
}

impl FinishReport {
    pub(crate) fn from_completion(finished: RunCompletion) -> FinishReport {
        FinishReport {
            interrupted: finished.interrupted,
            negotiated: finished.negotiated,
        }
    }

    pub(crate) fn new_interrupted() -> FinishReport {
        FinishReport {
            interrupted: true,
            negotiated: None,
        }
    }
}

impl ShardMessage {
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("keys are strings and numbers whole")
    }

    /// Parses a line.
    ///
    /// # Errors
    /// When the line is not a message; the error quotes the line.
    pub(crate) fn from_line(line: &str) -> Result<ShardMessage, String> {
        serde_json::from_str(line).map_err(|problem| {
            let begin: String = line.chars().take(80).collect();
            format!("it sent {begin:?}: {problem}")
        })
    }
}

/// A message from the supervisor to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SupervisorMessage {
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
            ShardMessage::Connecting(7),
            ShardMessage::Ready(ReadyReport {
                workers: 2,
                open: 10,
                failed: 1,
                failure: Some(ReadyFailure {
                    outcome: Outcome::ConnectRefused,
                    detail: "a \"word\"\nmore".into(),
                    is_after_tls: true,
                    is_at_proxy: false,
                }),
            }),
            ShardMessage::Interval(Box::new(IntervalRecord {
                index: 3,
                length: Duration::from_secs(1),
                ..IntervalRecord::default()
            })),
            ShardMessage::Finished(FinishReport {
                interrupted: true,
                negotiated: Some(NegotiatedTls::default()),
            }),
            ShardMessage::Failed("no\nroom".into()),
            ShardMessage::Defect("a\npanic".into()),
            ShardMessage::Alive,
            ShardMessage::Clock(ClockOffset {
                offset_us: -3,
                uncertainty_us: 7,
            }),
        ];
        for message in messages {
            let line = message.to_line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(ShardMessage::from_line(&line), Ok(message));
        }
        for order in [SupervisorMessage::Begin(Time(12)), SupervisorMessage::Stop] {
            let line = serde_json::to_string(&order).unwrap();
            assert_eq!(
                serde_json::from_str::<SupervisorMessage>(&line).unwrap(),
                order
            );
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
            let problem = ShardMessage::from_line(line).unwrap_err();
            assert!(problem.starts_with("it sent"), "{problem}");
        }
        for line in ["", "stop", r#""begin""#, r#"{"begin":"soon"}"#] {
            assert!(
                serde_json::from_str::<SupervisorMessage>(line).is_err(),
                "{line}"
            );
        }
    }
}
