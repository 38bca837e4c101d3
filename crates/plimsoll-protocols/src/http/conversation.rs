//! Conversations with a model: the request of each turn repeats all earlier messages and answers, and adds one message.
//!
//! Invariant: every turn sends all earlier messages and answers of its user, in order, and one new message. The memory
//! needed per user therefore grows with each turn.

use std::time::Duration;

use plimsoll_engine::driver::{Driver, Protocol};
use plimsoll_engine::script::scenario::{Scenario, UserCall};
use plimsoll_model::rows::template::{TemplatePart, VariationSettings};
use plimsoll_model::{Outcome, Time};
use serde_json::{Map, Value, json};

use super::call::{ConversationPlan, HttpCall, VaryingBody};
use super::request::write_body;

/// A driver whose next call can be given a body.
pub trait AcceptsBodies: Driver {
    /// Returns the wall-clock time, which templates may use, in nanoseconds since the Unix epoch.
    fn unix_ns(&self, now: Time) -> u64;

    /// Sets the body of the next call.
    fn set_next_body(&mut self, body: Vec<u8>);
}

/// The conversations of all users of a run. `P`: HTTP/1.1 or HTTP/2.
pub struct ConversationScenario<P> {
    protocol: P,
    plan: ConversationPlan,
    /// The key of the request body that contains the messages.
    messages_key: &'static str,
    variation: VariationSettings,
    body: VaryingBody,
    /// The key that limits the tokens of an answer, if its value is a template field that each turn renders anew.
    varying_limit: Option<&'static str>,
}

impl<P> ConversationScenario<P> {
    /// Creates the conversations of `call`; `None` if the call has no conversation.
    pub fn new(call: &HttpCall, protocol: P) -> Option<ConversationScenario<P>> {
        let varying = call.varying.as_ref()?;
        let answers = call.stream.as_ref()?.tokens?;
        let body = varying.body.clone()?;
        let limit = answers.api.limit_key;
        Some(ConversationScenario {
            varying_limit: limit.filter(|key| has_template_field_at(&body, key)),
            protocol,
            messages_key: answers.api.messages_key?,
            plan: ConversationPlan::clone(call.conversation.as_ref()?),
            variation: varying.variation.clone(),
            body,
        })
    }

    fn render(&self, body: &VaryingBody, number: u64, unix_ns: u64) -> Vec<u8> {
        let moment = self.variation.render_context(number, 0, unix_ns);
        let mut bytes = Vec::new();
        write_body(body, &moment, &mut bytes);
        bytes
    }

    /// Renders the request template of the plan, and splits it into its messages and its other keys.
    fn render_messages(&self, number: u64, unix_ns: u64) -> (Vec<Value>, Map<String, Value>) {
        let body = self.render(&self.body, number, unix_ns);
        // The template was checked to be a JSON object, but a column's value may make the rendered text invalid.
        let mut rest = match serde_json::from_slice(&body) {
            Ok(Value::Object(object)) => object,
            _ => Map::new(),
        };
        let messages = match rest.remove(self.messages_key) {
            Some(Value::Array(messages)) => messages,
            _ => Vec::new(),
        };
        (messages, rest)
    }
}

/// Returns whether the value of `key` in the JSON of `body` is a template field.
fn has_template_field_at(body: &VaryingBody, key: &str) -> bool {
    let key = format!("\"{key}\"");
    body.template.parts().windows(2).any(|parts| match parts {
        [TemplatePart::Text(text), TemplatePart::Field(_)] => {
            let before = text.trim_end().strip_suffix(':');
            before.is_some_and(|before| before.trim_end().ends_with(&key))
        }
        _ => false,
    })
}

/// The encoded conversation of one user so far.
#[derive(Debug, Default)]
pub struct ConversationHistory {
    /// The other keys of the requests, from the first turn; only `varying_limit` changes between turns.
    rest: Map<String, Value>,
    /// The beginning of the request, `{…,"messages":[`.
    before: Vec<u8>,
    /// The messages, separated by commas.
    messages: Vec<u8>,
}

impl ConversationHistory {
    fn begin(&mut self, rest: Map<String, Value>, messages_key: &str) {
        self.rest = rest;
        self.write_request_beginning(messages_key);
    }

    /// Replaces the value of `key`, if the request has this key and `value` is set.
    fn replace_value(&mut self, key: &str, value: Option<Value>, messages_key: &str) {
        if let (Some(place), Some(value)) = (self.rest.get_mut(key), value) {
            *place = value;
            self.write_request_beginning(messages_key);
        }
    }

    fn write_request_beginning(&mut self, messages_key: &str) {
        self.before = serde_json::to_vec(&self.rest).unwrap_or_default();
        self.before.pop();
        if self.before.len() > 1 {
            self.before.push(b',');
        }
        self.before
            .extend_from_slice(format!("\"{messages_key}\":[").as_bytes());
    }

    fn add_message(&mut self, message: &Value) {
        if !self.messages.is_empty() {
            self.messages.push(b',');
        }
        self.messages
            .extend_from_slice(message.to_string().as_bytes());
    }

    fn build_request(&self) -> Vec<u8> {
        [&self.before[..], &self.messages, b"]}"].concat()
    }
}

impl<P: Protocol> Scenario for ConversationScenario<P>
where
    P::Driver: AcceptsBodies,
{
    type Protocol = P;
    type UserState = ConversationHistory;

    fn protocol(&self) -> &P {
        &self.protocol
    }

    fn max_calls(&self) -> u32 {
        self.plan.turns
    }

    fn pause_before(&self, _call: u32) -> Duration {
        self.plan.think
    }

    fn replaces_lost_connections(&self) -> bool {
        true
    }

    fn prepare_call(
        &self,
        step: UserCall,
        now: Time,
        history: &mut ConversationHistory,
        driver: &mut P::Driver,
    ) -> Result<(), (Outcome, String)> {
        let UserCall { call, number, .. } = step;
        if step.is_retry {
            driver.set_next_body(history.build_request());
            return Ok(());
        }
        let unix_ns = driver.unix_ns(now);
        let follow_up = match (call as usize, self.plan.follow_ups.len()) {
            (0, _) | (_, 0) => None,
            (call, kinds) => Some(&self.plan.follow_ups[(call - 1) % kinds]),
        };
        match follow_up {
            Some(text) => {
                let text = self.render(text, number, unix_ns);
                let content = String::from_utf8_lossy(&text);
                history.add_message(&json!({ "role": "user", "content": content }));
                if let Some(key) = self.varying_limit {
                    let (_, mut rest) = self.render_messages(number, unix_ns);
                    history.replace_value(key, rest.remove(key), self.messages_key);
                }
            }
            None => {
                let (messages, mut rest) = self.render_messages(number, unix_ns);
                let known = match call {
                    0 => {
                        history.begin(rest, self.messages_key);
                        0
                    }
                    _ => {
                        if let Some(key) = self.varying_limit {
                            history.replace_value(key, rest.remove(key), self.messages_key);
                        }
                        messages.len().saturating_sub(1)
                    }
                };
                messages[known..]
                    .iter()
                    .for_each(|message| history.add_message(message));
            }
        }
        driver.set_next_body(history.build_request());
        Ok(())
    }

    fn on_response_text(&self, text: String, history: &mut ConversationHistory) {
        history.add_message(&json!({ "role": "assistant", "content": text }));
    }
}
