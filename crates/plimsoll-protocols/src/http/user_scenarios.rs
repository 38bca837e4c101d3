//! Resolves scenarios in which a user makes several calls: conversations with a model, and scripts of WebSocket frames.

use std::time::Duration;

use plimsoll_model::rows::template::{self, Template};
use plimsoll_model::spec::Problems;

use super::call::{ConversationPlan, EventFormat, FrameAnswer, FrameCall, VaryingBody};
use super::llm_api::LlmApi;
use super::payload::{BodySource, Payload, TemplateContext, has_message_field, load_payload};
use super::response_settings::parse_event_match;
use super::section::{ConversationSpec, FrameSpec, HttpSpec};

const MAX_CALLS_PER_USER: u32 = 1_000_000;

/// Resolves the conversations of users with a model, with pauses between turns.
pub(super) fn resolve_conversation(
    problems: &mut Problems,
    (think, talk, api): (Duration, &ConversationSpec, &LlmApi),
    payload: Option<&mut Payload>,
    texts: &mut TemplateContext<'_>,
) -> Option<Box<ConversationPlan>> {
    const CONVERSATION_KEY: &str = "call.http.conversation";
    let turns = match talk.turns {
        Some(turns @ 1..=MAX_CALLS_PER_USER) => turns,
        _ => {
            let text = format!("the turns of a conversation: use 1 to {MAX_CALLS_PER_USER}");
            problems.add(format!("{CONVERSATION_KEY}.turns"), text);
            return None;
        }
    };
    let mut follow_ups = Vec::new();
    for (nth, text) in talk.follow_ups.iter().flatten().enumerate() {
        let key = format!("{CONVERSATION_KEY}.follow_ups.{nth}");
        let parsed = Template::parse(text, texts.slots, texts.scope);
        let template = problems.ok_or_report(&key, parsed)?;
        if has_message_field(&template) {
            problems.add(&key, "{{message}}: not supported in a turn");
        }
        texts.uses_rows |= template::uses_rows(text);
        follow_ups.push(VaryingBody {
            quoted: vec![false; template.parts().len()],
            template,
            typed: text.clone(),
        });
    }
    // Each turn renders its own body, so the payload must be a template.
    if let Some(payload) = payload {
        let body = payload.make_varying(texts);
        let key = api.messages_key;
        let has_messages = |body: Vec<u8>| key.is_some_and(|key| contains_messages(&body, key));
        if !body.is_ok_and(has_messages) {
            let key = key.unwrap_or("messages");
            let why = format!(
                "a conversation continues \"{key}\": write a JSON object that has them, as chat completions do"
            );
            problems.add("call.http.body", why);
        }
    }
    Some(Box::new(ConversationPlan {
        turns,
        think,
        follow_ups,
    }))
}

/// Resolves the script of frames that each user sends.
pub(super) fn resolve_script(
    problems: &mut Problems,
    think: Duration,
    call: &HttpSpec,
    frames: &[FrameSpec],
    texts: &mut TemplateContext<'_>,
) -> Vec<FrameCall> {
    const SCRIPT_KEY: &str = "call.http.websocket.script";
    let mut script: Vec<FrameCall> = Vec::new();
    for (nth, frame) in frames.iter().enumerate() {
        let key = format!("{SCRIPT_KEY}.{nth}");
        let source = BodySource {
            key: &key,
            text: frame.body.as_ref(),
            file: frame.body_file.as_ref(),
        };
        let Some(payload) = load_payload(problems, source, texts) else {
            continue;
        };
        if payload.varying.is_none() && payload.bytes.is_empty() {
            problems.add(format!("{key}.body"), "missing: the frame's content");
        }
        let socket = call.websocket.as_ref().and_then(|socket| socket.binary);
        let binary = frame.binary.or(socket).unwrap_or(false);
        if !binary && std::str::from_utf8(&payload.bytes).is_err() {
            problems.add(
                format!("{key}.body_file"),
                "text frames must be UTF-8, and this file is not: also write binary = true",
            );
        }
        let waits = frame.answer.unwrap_or(true);
        if !waits && (frame.until.is_some() || frame.expect.is_some()) {
            problems.add(
                &key,
                "without an answer there is nothing to expect: leave `until` and `expect` out",
            );
        }
        let follows = script.last().is_none_or(|before| before.answer.is_none());
        if follows && frame.pace.is_some() {
            problems.add(
                format!("{key}.pace"),
                "a pause is between an answer and the next frame: remove it from the first frame, \
                 and from those after a frame without an answer",
            );
        }
        let (key, until) = match &frame.until {
            Some(_) => (format!("{key}.until"), frame.until.as_ref()),
            None => (
                "call.http.stream_until".to_owned(),
                call.stream_until.as_ref(),
            ),
        };
        let until = parse_event_match(problems, &key, until, EventFormat::NdJson);
        script.push(FrameCall {
            payload: payload.bytes,
            varying: payload.varying,
            binary,
            answer: waits.then(|| FrameAnswer {
                until,
                expect: frame.expect.clone().or_else(|| call.expect_body.clone()),
            }),
            pace: frame.pace.map_or(think, |pace| pace.0),
        });
    }
    if script.last().is_some_and(|last| last.answer.is_none()) {
        problems.add(
            SCRIPT_KEY,
            "the last frame needs an answer, because a call ends with one",
        );
    }
    script
}

/// Returns whether the body of the first call has messages at `key`.
fn contains_messages(body: &[u8], key: &str) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let messages = value.as_ref().and_then(|value| value.get(key)?.as_array());
    messages.is_some_and(|messages| {
        messages.iter().all(serde_json::Value::is_object) && !messages.is_empty()
    })
}
