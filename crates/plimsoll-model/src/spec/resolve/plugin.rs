//! `[call.plugin]` → plan.

use std::time::Duration;

use super::bolt::{is_zero, off};
use super::{Problems, Surroundings};
use crate::plan::{CallPlan, PluginCall};
use crate::spec::PluginSpec;
use crate::units::Size;

const HEARTBEAT: Duration = Duration::from_secs(15);
const MAX_FRAME: Size = Size(16 << 20);

impl Problems {
    pub(super) fn plugin_call(
        &mut self,
        call: &PluginSpec,
        surroundings: &dyn Surroundings,
    ) -> Option<CallPlan> {
        let before = self.0.len();
        let codec = match &call.codec {
            Some(path) => path.clone(),
            None => {
                self.add(
                    "call.plugin.codec",
                    "missing: name the shared object that brings the protocol, such as x_example.so",
                );
                return None;
            }
        };
        let given: Vec<&str> = [
            ("payload", call.payload.is_some()),
            ("payload_file", call.payload_file.is_some()),
            ("frame", call.frame.is_some()),
            ("frame_file", call.frame_file.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
        .collect();
        if let [first, second, ..] = given[..] {
            self.add(
                format!("call.plugin.{second}"),
                format!("given beside call.plugin.{first}: use one of the two"),
            );
        }
        if call.in_flight == Some(0) {
            self.add(
                "call.plugin.in_flight",
                "0 calls in flight carry nothing: use 1 or more, or leave it out",
            );
        }
        let max_frame = call.max_frame.unwrap_or(MAX_FRAME).0;
        if !(1..1 << 31).contains(&max_frame) {
            self.add("call.plugin.max_frame", "out of range: use 1B to 2047MiB");
        }
        if call.heartbeat.is_some_and(is_zero) {
            self.add(
                "call.plugin.heartbeat",
                "0 would send nothing but heartbeats: use a duration, or \"none\"",
            );
        }
        if self.0.len() > before {
            return None;
        }
        let encoded = surroundings.encode_plugin(call);
        let encoded = encoded.map_err(|problem| self.0.push(problem)).ok()?;
        Some(CallPlan::Plugin(PluginCall {
            codec,
            protocol: encoded.protocol,
            frame: encoded.frame,
            in_flight: call.in_flight,
            heartbeat: off(call.heartbeat, HEARTBEAT),
            max_frame: max_frame as usize,
        }))
    }
}
