//! Checks responses against the expectations of the plan.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::Outcome;
use plimsoll_model::plan::GoodputBounds;

use super::call::{CallPurpose, EventStream, HttpCall};
use super::endless_streams::EndlessStreams;
use super::envelopes;
use super::missing_page::MissingPage;
use super::refusals::Refusal;
use super::status::{is_valid_status, outcome_from_status};
use super::text_search::Needle;
use crate::journey::CaptureLevel;
use crate::shared::unpacking::ContentCodings;

/// The outcome if a required header field is missing, or has another value.
const HEADER_MISMATCH: Outcome = Outcome::coded("HTTP_HEADER");
/// The outcome if the body does not contain the expected text.
pub(super) const BODY_MISMATCH: Outcome = Outcome::coded("HTTP_BODY");
/// The maximum length of received text in a message, in bytes.
const MAX_PRINTABLE_BYTES: usize = 200;

/// The media type of server-sent events.
pub(super) const EVENT_STREAM_TYPE: &str = "text/event-stream";

/// Media types that messages show by name. They are constants because copying a name would cost an allocation per
/// response.
const MEDIA_TYPES: [&str; 10] = [
    EVENT_STREAM_TYPE,
    "application/json",
    "application/problem+json",
    "application/stream+json",
    "application/x-ndjson",
    "application/octet-stream",
    "application/xml",
    "text/html",
    "text/plain",
    "text/xml",
];

/// The maximum size of a decoded body or document if the plan sets no limit, in bytes.
const DEFAULT_MAX_UNPACKED_BYTES: u64 = 256 << 20;

/// The smallest limit of heads, in bytes; calls built by tests may have a limit of 0.
const MIN_HEAD_LIMIT_BYTES: u32 = 64 << 10;

/// The properties of a body that the head of its response determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyMetadata {
    pub(super) codings: ContentCodings,
    /// Whether the head itself reports success (gRPC-Web or Connect), so no message follows.
    pub(super) succeeded_in_head: bool,
    /// The media type to show in messages: one of [`MEDIA_TYPES`], or a phrase for other types. Empty if the body need
    /// not be a stream.
    pub(super) media_type: &'static str,
    /// Whether the body may be an error page in place of a file, because the head does not give its length.
    pub(super) may_be_page: bool,
    /// How the server refuses the call for now; `None`: it does not.
    pub(super) refusal: Option<Refusal>,
}

impl BodyMetadata {
    /// A body that is read without decoding or checks.
    pub(super) const UNINSPECTED_BODY: BodyMetadata = BodyMetadata {
        codings: ContentCodings::IDENTITY,
        succeeded_in_head: false,
        media_type: "",
        may_be_page: false,
        refusal: None,
    };
}

impl Default for BodyMetadata {
    fn default() -> BodyMetadata {
        BodyMetadata::UNINSPECTED_BODY
    }
}

/// The checks of all responses, built once and shared by all connections.
#[derive(Clone, Debug)]
pub(super) struct ResponseChecks {
    /// The call's name in failure texts: `GET /path`.
    call_name: String,
    statuses: Vec<(u16, u16)>,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Option<Needle>,
    size: Option<u64>,
    /// Recognises the page that a file server sends for a missing file.
    pub(super) missing_page: Option<Arc<MissingPage>>,
    pub(super) stream: Option<EventStream>,
    /// The time from a stream's head until the stream is ended and counted as successful.
    pub(super) stream_duration: Option<Duration>,
    /// Whether streams end with the load.
    pub(super) endless: Arc<EndlessStreams>,
    /// Whether messages have a length prefix, also in requests.
    pub(super) has_prefix: bool,
    /// Whether a response's text is kept for the next turn of a conversation.
    pub(super) keeps_text: bool,
    /// Whether the text of successful responses is kept, to count its tokens.
    pub(super) counts_text: bool,
    pub(super) max_body: u64,
    /// The maximum size of a response's head, in bytes.
    pub(super) max_head: u32,
    /// The maximum size of a decoded body, and of a body that is read as one document, in bytes.
    pub(super) max_unpacked: u64,
    /// Whether requests ask for compressed responses, which are decoded even if their content is not checked.
    unpacks: bool,
    /// Whether the head of each response is kept, because a journey takes values from it.
    pub(super) captures_head: bool,
    /// Whether the body of each response is kept, too.
    pub(super) captures_body: bool,
    /// Whether responses have no body, whatever their fields say, because the method is HEAD (RFC 9110 §9.3.2).
    pub(super) bodiless: bool,
}

impl ResponseChecks {
    pub(super) fn new(call: &HttpCall) -> ResponseChecks {
        ResponseChecks {
            call_name: format!("{} {}", call.method, call.path),
            statuses: call.expect.clone(),
            headers: (call.expect_headers.iter())
                .map(|(name, value)| (name.clone(), value.clone().into_bytes()))
                .collect(),
            body: call.expect_body.as_deref().map(Needle::new),
            size: call.expect_size,
            missing_page: (call.purpose == CallPurpose::File)
                .then(|| Arc::new(MissingPage::for_path(&call.path))),
            stream: call.stream.clone(),
            stream_duration: call.stream_duration,
            endless: Arc::new(EndlessStreams::new(call.ends_with_load)),
            has_prefix: envelopes::has_prefix(call),
            keeps_text: call.conversation.is_some(),
            counts_text: call.tokenizer.is_some(),
            max_body: call.max_body.into(),
            max_head: call.max_head.max(MIN_HEAD_LIMIT_BYTES),
            max_unpacked: match call.max_body {
                u32::MAX => DEFAULT_MAX_UNPACKED_BYTES,
                limit => limit.into(),
            },
            unpacks: call.compressed,
            captures_head: false,
            captures_body: false,
            bodiless: call.method == "HEAD",
        }
    }

    /// Creates the checks of a journey's step. `capture`: the part of responses that is kept.
    pub(super) fn for_step(call: &HttpCall, capture: CaptureLevel) -> ResponseChecks {
        ResponseChecks {
            captures_head: true,
            captures_body: capture == CaptureLevel::Whole,
            ..ResponseChecks::new(call)
        }
    }

    /// Returns whether the content of successful responses is read, not only counted.
    pub(super) fn inspects_bodies(&self) -> bool {
        self.body.is_some() || self.stream.is_some() || self.captures_body
    }

    /// Returns whether a body of `size` bytes has the expected length.
    #[inline]
    pub(super) fn has_expected_size(&self, size: u64) -> bool {
        self.size.is_none_or(|wanted| wanted == size)
    }

    /// Returns the outcome of a call whose response head passed the checks, and the failure text. `ended`: the result
    /// of reading the body, if its content was checked. `size`: the body's length in bytes.
    pub(super) fn final_outcome(
        &self,
        ended: Option<(Outcome, Option<String>)>,
        size: u64,
    ) -> (Outcome, Option<String>) {
        let (outcome, why) = match (ended, self.size) {
            (None | Some((Outcome::Ok, _)), Some(wanted)) if wanted != size => {
                let why = format!("a body of {size} bytes instead of {wanted}");
                (Outcome::BodyLength, Some(why))
            }
            (ended, _) => ended.unwrap_or((Outcome::Ok, None)),
        };
        (outcome, why.map(|why| self.body_failure_text(&why)))
    }

    /// Returns whether bodies are neither inspected nor decoded, so that only their bytes are counted.
    pub(super) fn only_counts_bodies(&self) -> bool {
        !self.inspects_bodies() && !self.unpacks
    }

    /// Returns the bounds that a call must meet to count as good.
    pub(super) fn goodput_bounds(&self) -> GoodputBounds {
        let stream = self.stream.as_ref();
        let answers = stream.and_then(|stream| stream.tokens);
        answers.map_or_else(GoodputBounds::default, |answers| answers.goodput)
    }

    /// Checks the head of a response. Returns the outcome so far, and how to read the body.
    pub(super) fn check_head<'a>(
        &self,
        status: u16,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> (Outcome, BodyMetadata) {
        let packed = |(name, _): &(&[u8], &[u8])| name.eq_ignore_ascii_case(b"content-encoding");
        let packings = fields.clone().filter(packed).map(|(_, value)| value);
        let codings = ContentCodings::parse(packings);
        let ended = self.head_only_outcome(fields.clone());
        let retry_after = find_field(fields.clone(), b"retry-after");
        let outcome = if self.is_expected(status) {
            match ended.filter(|ended| !ended.is_ok()) {
                Some(failure) => failure,
                None => self.check_fields(fields.clone()),
            }
        } else {
            outcome_from_status(status, retry_after)
        };
        let ended = ended == Some(Outcome::Ok);
        let reading = BodyMetadata {
            codings,
            succeeded_in_head: ended,
            media_type: self.media_type(fields.clone()),
            may_be_page: self.missing_page.is_some() && !is_body_delimited(fields),
            refusal: Refusal::from_head(outcome, retry_after),
        };
        match outcome {
            // The failure text shows the beginning of the body, so the body is decoded even if the call has failed.
            Outcome::Ok if self.only_counts_bodies() => (
                Outcome::Ok,
                BodyMetadata {
                    may_be_page: reading.may_be_page,
                    ..BodyMetadata::UNINSPECTED_BODY
                },
            ),
            Outcome::Ok if !codings.are_supported() => (Outcome::CompressionUnsupported, reading),
            _ => (outcome, reading),
        }
    }

    /// Returns the media type that messages show if the body is not the expected stream.
    fn media_type<'a>(&self, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> &'static str {
        if self.stream.is_none() {
            return "";
        }
        let Some(value) = find_field(fields, b"content-type") else {
            return "none";
        };
        let name = value.split(|b| *b == b';').next().unwrap_or_default();
        let mut known = MEDIA_TYPES.into_iter();
        known
            .find(|known| name.trim_ascii().eq_ignore_ascii_case(known.as_bytes()))
            .unwrap_or("of another kind")
    }

    /// Returns the outcome given in the head of a gRPC-Web or Connect response without messages.
    fn head_only_outcome<'a>(
        &self,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Option<Outcome> {
        let [status, _] = envelopes::STATUS_FIELDS;
        let found = self
            .has_prefix
            .then(|| find_field(fields, status.as_bytes()))?;
        envelopes::parse_status_code(found?)
    }

    fn is_expected(&self, status: u16) -> bool {
        let mut all = self.statuses.iter();
        all.any(|(from, to)| (*from..=*to).contains(&status))
    }

    /// Checks the required header fields of a response.
    fn check_fields<'a>(
        &self,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Outcome {
        let has = |(name, value): &(String, Vec<u8>)| {
            let of_name = |(other, _): &(&[u8], &[u8])| other.eq_ignore_ascii_case(name.as_bytes());
            let mut all = fields.clone().filter(of_name);
            all.any(|(_, found)| found == value.as_slice())
        };
        if self.headers.iter().all(has) {
            Outcome::Ok
        } else {
            HEADER_MISMATCH
        }
    }

    /// Returns the failure text of a call that failed because of its response's head.
    pub(super) fn head_failure_text<'a>(
        &self,
        outcome: Outcome,
        status: u16,
        reason: &str,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> String {
        let value = |name: &str| find_field(fields.clone(), name.as_bytes()).map(to_printable);
        let mut text = format!("{}: {status:03}", self.call_name);
        if !is_valid_status(status) {
            text += " (not from 100 to 599, as RFC 9110, 15, requires)";
        }
        if !reason.is_empty() {
            text = format!("{text} {}", to_printable(reason.as_bytes()));
        }
        if outcome == HEADER_MISMATCH {
            for (name, wanted) in &self.headers {
                let of_name =
                    |(other, _): &(&[u8], &[u8])| other.eq_ignore_ascii_case(name.as_bytes());
                let mut all = fields.clone().filter(of_name);
                if all.any(|(_, found)| found == wanted.as_slice()) {
                    continue;
                }
                let wanted = to_printable(wanted);
                match value(name) {
                    Some(found) => text = format!("{text}, {name} is `{found}`, not `{wanted}`"),
                    None => text = format!("{text}, without {name}"),
                }
            }
        }
        let ends = envelopes::STATUS_FIELDS
            .into_iter()
            .filter(|_| self.has_prefix);
        let shown = ["location", "retry-after", "content-encoding"];
        for name in shown.into_iter().chain(ends) {
            if let Some(value) = value(name) {
                text = format!("{text}, {name}: {value}");
            }
        }
        text
    }

    /// Adds the beginning of the body to the text of a failure.
    pub(super) fn with_excerpt(text: String, outcome: Outcome, body: &[u8]) -> String {
        match body.trim_ascii() {
            [] => text,
            _ if outcome == Outcome::CompressionUnsupported => text,
            body => format!("{text}: {}", to_printable(body)),
        }
    }

    /// Returns the failure text of a call that failed because of its response's body.
    pub(super) fn body_failure_text(&self, why: &str) -> String {
        format!("{}: {why}", self.call_name)
    }
}

/// Returns whether the head says where the body ends, by a length or by chunked coding.
fn is_body_delimited<'a>(mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    let names: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
    fields.any(|(name, _)| names.iter().any(|other| name.eq_ignore_ascii_case(other)))
}

fn find_field<'a>(
    mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    name: &[u8],
) -> Option<&'a [u8]> {
    let found = fields.find(|(other, _)| other.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

/// Converts bytes to text for a terminal: replaces control characters, and truncates.
pub(super) fn to_printable(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MAX_PRINTABLE_BYTES)];
    let text = String::from_utf8_lossy(cut);
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_statuses_are_bad_answers() {
        let checks = ResponseChecks::new(&HttpCall::default());
        let fields = || std::iter::empty::<(&[u8], &[u8])>();
        for (status, shown) in [(99, "099"), (999, "999")] {
            let (outcome, _) = checks.check_head(status, fields());
            assert_eq!(outcome, Outcome::BadAnswer);
            let text = checks.head_failure_text(outcome, status, "OK", fields());
            let problem = "(not from 100 to 599, as RFC 9110, 15, requires)";
            assert!(text.ends_with(&format!(": {shown} {problem} OK")), "{text}");
        }
    }
}
