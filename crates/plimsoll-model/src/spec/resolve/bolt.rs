//! `[call.bolt]` → plan.

use std::time::Duration;

use super::{DEADLINE, Limit, Problems, Surroundings};
use crate::plan::{BoltCall, BoltVersion, CallPlan};
use crate::spec::{BoltSpec, Spec};
use crate::template;
use crate::units::Size;

/// As SOFABolt's own clients have it.
const HEARTBEAT: Duration = Duration::from_secs(15);
const MAX_CONTENT: Size = Size(16 << 20);
/// Hessian 2.
const CODEC: u8 = 1;

pub(in crate::spec) const VERSIONS: [(&str, BoltVersion); 3] = [
    ("v1", BoltVersion::V1),
    ("v2", BoltVersion::V2),
    ("v2-crc", BoltVersion::V2Crc),
];

impl Problems {
    pub(super) fn bolt_call(
        &mut self,
        spec: &Spec,
        call: &BoltSpec,
        surroundings: &dyn Surroundings,
    ) -> Option<CallPlan> {
        let before = self.0.len();
        let version = match call.version.as_deref() {
            None => BoltVersion::V1,
            Some(typed) => {
                let known = VERSIONS.iter().find(|(name, _)| *name == typed);
                if known.is_none() {
                    self.add(
                        "call.bolt.version",
                        format!("`{typed}` is unknown: use \"v1\", \"v2\" or \"v2-crc\""),
                    );
                }
                known.map_or(BoltVersion::V1, |(_, version)| *version)
            }
        };
        if call.in_flight == Some(0) {
            self.add(
                "call.bolt.in_flight",
                "0 calls in flight carry nothing: use 1 or more, or leave it out",
            );
        }
        let max_content = call.max_content.unwrap_or(MAX_CONTENT).0;
        if !(1..1 << 31).contains(&max_content) {
            self.add("call.bolt.max_content", "out of range: use 1B to 2047MiB");
        }
        if call.heartbeat.is_some_and(is_zero) {
            self.add(
                "call.bolt.heartbeat",
                "0 would send nothing but heartbeats: use a duration, or \"none\"",
            );
        }
        if call.timeout.is_some_and(is_zero) {
            self.add(
                "call.bolt.timeout",
                "a timeout of 0 is none to some servers and an end at once to others: use a duration, or \"none\"",
            );
        }
        self.bolt_shape(call);
        self.bolt_constant(call);
        if self.0.len() > before {
            return None;
        }
        let encoded = surroundings.encode_bolt(call);
        let encoded = encoded.map_err(|problem| self.0.push(problem)).ok()?;
        let deadline = off(spec.load.deadline.or(call.deadline), DEADLINE);
        Some(CallPlan::Bolt(BoltCall {
            method: encoded.method,
            version,
            codec: call.codec.unwrap_or(CODEC),
            class: encoded.class,
            header: encoded.header,
            content: encoded.content,
            timeout: match call.timeout {
                None => deadline,
                Some(Limit::None) => None,
                Some(Limit::After(period)) => Some(period.0),
            },
            oneway: call.oneway.unwrap_or(false),
            in_flight: call.in_flight,
            heartbeat: off(call.heartbeat, HEARTBEAT),
            max_content: max_content as usize,
        }))
    }

    /// Sending the braces as they are would look like success.
    fn bolt_constant(&mut self, call: &BoltSpec) {
        let header = call.header.iter().map(|(name, value)| {
            let key = format!("header.{name}");
            (key, Some(value))
        });
        let parts = [
            ("arguments".to_owned(), call.arguments.as_ref()),
            ("content".to_owned(), call.content.as_ref()),
        ];
        for (key, text) in parts.into_iter().chain(header) {
            if let Some(field) = text.and_then(|text| template::first_field(text)) {
                self.add(
                    format!("call.bolt.{key}"),
                    format!("`{field}`: every Bolt call sends the same, only gRPC messages vary"),
                );
            }
        }
    }

    /// Either a service and its method, or raw parts: not a mixture.
    fn bolt_shape(&mut self, call: &BoltSpec) {
        if call.is_raw() {
            for (key, given) in [
                ("service", call.service.is_some()),
                ("method", call.method.is_some()),
                ("arguments", call.arguments.is_some()),
                ("signature", call.signature.is_some()),
            ] {
                if given {
                    self.add(
                        format!("call.bolt.{key}"),
                        "given beside a raw class or content: use either service and method, or class and content",
                    );
                }
            }
            if call.class.is_none() {
                self.add(
                    "call.bolt.class",
                    "missing: a raw content needs its class, such as java.lang.String",
                );
            }
            match (&call.content, &call.content_file) {
                (Some(_), Some(_)) => self.add(
                    "call.bolt.content_file",
                    "given beside call.bolt.content: use one of the two",
                ),
                (None, None) => self.add(
                    "call.bolt.content",
                    "missing: a raw call needs content (JSON) or content_file",
                ),
                _ => {}
            }
            return;
        }
        if call.service.is_none() {
            self.add(
                "call.bolt.service",
                "missing: write interface:version, such as com.alipay.test.TestService:1.0",
            );
        }
        if call.method.is_none() {
            self.add(
                "call.bolt.method",
                "missing: write the method's name, such as echoStr",
            );
        }
        if call.codec.is_some() {
            self.add(
                "call.bolt.codec",
                "only for raw calls: service and method are sent in Hessian 2",
            );
        }
    }
}

pub(super) fn is_zero(limit: Limit) -> bool {
    matches!(limit, Limit::After(period) if period.0.is_zero())
}

pub(super) fn off(limit: Option<Limit>, default: Duration) -> Option<Duration> {
    match limit {
        None => Some(default),
        Some(Limit::None) => None,
        Some(Limit::After(period)) => Some(period.0),
    }
}
