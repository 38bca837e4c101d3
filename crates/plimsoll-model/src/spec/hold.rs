//! The `[call.hold]` section: connections that rest, what it leaves out, and what can't be
//! meant.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::resolve::{Problems, stage};
use super::{Limit, LoadSpec, Spec};
use crate::plan::{Arrivals, CallPlan, HoldCall, Stage};
use crate::units::{Period, Size};

/// Below this the processes themselves outweigh what one connection holds.
const CONNECTIONS: u32 = 1_000;
const GREETING: Size = Size(16);
const MESSAGE: Size = Size(1);
/// What one TLS record holds (RFC 8446 §5.1): a connection at rest is about few bytes.
const MAX_BYTES: u64 = 1 << 14;
/// Connections a second that are tried out at the end: no great load for either end.
const TRIES_PER_S: u64 = 5_000;

/// Connections that are opened and held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HoldSpec {
    /// How often each connection carries a message and its echo while it is held, or
    /// "none" (the default): then each carries one when the time is over.
    pub keepalive: Option<Limit>,
    /// Bytes that are echoed when a connection has come up. Default 16B.
    pub greeting: Option<Size>,
    /// Bytes of a message. Default 1B.
    pub message: Option<Size>,
}

/// The spec with the number of connections that it means.
pub(super) fn with_defaults(spec: &Spec) -> Option<Spec> {
    spec.call.hold.as_ref()?;
    let mut spec = spec.clone();
    spec.load.connections.get_or_insert(CONNECTIONS);
    Some(spec)
}

/// Every default written out.
pub(super) fn filled_in(call: &HoldCall) -> HoldSpec {
    HoldSpec {
        keepalive: Some(super::bolt::limit(call.keepalive)),
        greeting: Some(Size(call.greeting as u64)),
        message: Some(Size(call.message as u64)),
    }
}

impl Problems {
    pub(super) fn hold(&mut self, hold: &HoldSpec) -> Option<CallPlan> {
        let greeting = self.few("greeting", hold.greeting.unwrap_or(GREETING));
        let message = self.few("message", hold.message.unwrap_or(MESSAGE));
        let keepalive = match hold.keepalive {
            None | Some(Limit::None) => None,
            Some(Limit::After(period)) => Some(period.0),
        };
        Some(CallPlan::Hold(HoldCall {
            keepalive,
            greeting: greeting?,
            message: message?,
        }))
    }

    fn few(&mut self, key: &str, size: Size) -> Option<usize> {
        if !(1..=MAX_BYTES).contains(&size.0) {
            self.add(
                format!("call.hold.{key}"),
                format!("{size} out of range: use 1B to 16KiB"),
            );
            return None;
        }
        usize::try_from(size.0).ok()
    }

    /// When held connections are used: as often as asked, or once at the end.
    pub(super) fn hold_arrivals(
        &mut self,
        hold: &HoldSpec,
        load: &LoadSpec,
    ) -> (Option<Arrivals>, Vec<Stage>) {
        let before = self.0.len();
        for (key, given) in [
            ("rate", load.rate.is_some()),
            ("steps", load.steps.is_some()),
            ("clients", load.clients.is_some()),
            ("think", load.think.is_some()),
            ("calls", load.calls.is_some()),
        ] {
            if given {
                self.add(
                    format!("load.{key}"),
                    "not used with connections that are held: call.hold.keepalive says how often each carries a message",
                );
            }
        }
        if load.reuse.as_deref() == Some("never") {
            self.add(
                "load.reuse",
                "connections that are held are kept: leave it out",
            );
        }
        if load.warmup.is_some_and(|warmup| !warmup.0.is_zero()) {
            self.add(
                "load.warmup",
                "not used with connections that are held: nothing runs before they are up",
            );
        }
        let spacing = self.spacing(load);
        let held = match load.duration {
            Some(period) if !period.0.is_zero() => period.0,
            Some(_) => {
                self.add(
                    "load.duration",
                    "0 holds nothing: use a duration such as \"10s\"",
                );
                return (None, Vec::new());
            }
            None => {
                self.add(
                    "load.duration",
                    "missing: how long the connections are held, such as duration = \"10s\"",
                );
                return (None, Vec::new());
            }
        };
        let connections = u64::from(load.connections.unwrap_or(CONNECTIONS));
        let stages = match hold.keepalive {
            Some(Limit::After(Period(every))) if every.is_zero() || every > held => {
                self.add(
                    "call.hold.keepalive",
                    format!(
                        "{} is not between 0 and load.duration ({}): no connection would be used while it is held; use a shorter one, or \"none\"",
                        Period(every),
                        Period(held)
                    ),
                );
                Vec::new()
            }
            Some(Limit::After(Period(every))) => {
                let rate = connections as f64 / every.as_secs_f64();
                vec![stage("held", false, Some(held), rate, rate)]
            }
            None | Some(Limit::None) => {
                let tries = Duration::from_nanos(connections * (1_000_000_000 / TRIES_PER_S));
                let rate = TRIES_PER_S as f64;
                vec![
                    stage("held", false, Some(held), 0.0, 0.0),
                    stage("tried out", false, Some(tries), rate, rate),
                ]
            }
        };
        let fine = self.0.len() == before;
        (fine.then_some(Arrivals::Open(spacing)), stages)
    }
}
