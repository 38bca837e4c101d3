//! Posts metrics or spans to an OTLP collector over HTTP, and reads the collector's answers.
//!
//! The environment variables of OpenTelemetry exporters apply. Invariant: header values, which may be secrets, are
//! never printed. Redirects are not followed, because they could send header values to another host.

use plimsoll_protocols::interface::flags::split_name_value;
use plimsoll_report::exports::otlp::{ExportRequest, PartialSuccess};
use plimsoll_serving::pages::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use std::time::Duration;

use crate::failure::{Failure, message_with_causes};
use crate::settings::environment::Environment;

/// Timeout of a post.
const POST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of an answer to read.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum number of characters of an answer to show.
const MAX_SHOWN_CHARS: usize = 200;

/// A kind of telemetry, with the flag and the variables that configure its collector.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OtlpSignal {
    /// Name of the signal, for messages.
    name: &'static str,
    /// Name of one item of the signal, for messages.
    unit: &'static str,
    /// The flag that takes the collector's URL.
    pub(super) flag: &'static str,
    /// Default path of the collector's URL.
    path: &'static str,
    /// Environment variables of OpenTelemetry exporters: first the variable for this signal only, then the variable for
    /// all signals.
    headers_variables: [&'static str; 2],
    protocol_variables: [&'static str; 2],
}

pub(super) const METRICS_SIGNAL: OtlpSignal = OtlpSignal {
    name: "metrics",
    unit: "data points",
    flag: "--telemetry",
    path: "/v1/metrics",
    headers_variables: [
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ],
    protocol_variables: [
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ],
};

pub(super) const SPANS_SIGNAL: OtlpSignal = OtlpSignal {
    name: "spans",
    unit: "spans",
    flag: "--spans",
    path: "/v1/traces",
    headers_variables: [
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ],
    protocol_variables: [
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ],
};

/// The encoding of posts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OtlpEncoding {
    #[default]
    Protobuf,
    Json,
}

/// The rejection of some of a request's items by a collector that accepted the others.
#[derive(Debug)]
pub(super) struct PartialRejection {
    /// The number of rejected data points or spans.
    pub(super) rejected: u64,
    /// The collector's message, preceded by the collector's URL.
    pub(super) reason: String,
}

/// An OTLP endpoint with its header fields and encoding.
#[derive(Debug)]
pub(super) struct OtlpCollector {
    signal: &'static OtlpSignal,
    url: Url,
    headers: HeaderMap,
    encoding: OtlpEncoding,
}

impl OtlpCollector {
    /// Creates a collector of `signal`. `typed` are the header fields (`NAME: VALUE`) from flags, which take precedence
    /// over those from the environment.
    ///
    /// # Errors
    /// When `url` or a header field is invalid, or the environment requests an unsupported protocol.
    pub(super) fn new(
        signal: &'static OtlpSignal,
        url: &str,
        typed: &[String],
        environment: &Environment,
    ) -> Result<OtlpCollector, Failure> {
        let mut url = Url::parse(url).map_err(|e| {
            // Don't quote the URL: it may contain a password.
            Failure::usage(
                format_args!("{}: not a URL: {e}", signal.flag),
                "write the URL of an OTLP collector; its port is mostly 4318",
            )
        })?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(Failure::usage(
                format_args!(
                    "{}: not the URL of a collector: `{}://`",
                    signal.flag,
                    url.scheme()
                ),
                &format!(
                    "{} are posted with OTLP over HTTP: write http:// or https://; the port is mostly 4318",
                    signal.name
                ),
            ));
        }
        if url.path() == "/" {
            url.set_path(signal.path);
        }
        let mut headers = HeaderMap::new();
        if let Some((variable, text)) = first_set_variable(&signal.headers_variables, environment) {
            add_from_variable(&mut headers, variable, &text)?;
        }
        for field in typed {
            add_from_flag(&mut headers, field, environment)?;
        }
        Ok(OtlpCollector {
            signal,
            url,
            headers,
            encoding: choose_encoding(signal, environment)?,
        })
    }

    /// Creates an HTTP client.
    ///
    /// # Errors
    /// When the HTTP client can't be created.
    pub(super) fn new_client(&self) -> Result<Client, String> {
        let client = Client::builder()
            .timeout(POST_TIMEOUT)
            .redirect(Policy::none());
        client.build().map_err(|e| message_with_causes(&e))
    }

    /// Posts a request; returns the collector's message if it accepted the request only partially, or with a warning.
    ///
    /// # Errors
    /// When the connection fails, or the collector rejects the whole request.
    pub(super) async fn post(
        &self,
        client: &Client,
        request: &impl ExportRequest,
    ) -> Result<Option<PartialRejection>, String> {
        let (kind, body) = match self.encoding {
            OtlpEncoding::Protobuf => ("application/x-protobuf", request.to_protobuf()),
            OtlpEncoding::Json => ("application/json", request.to_json()),
        };
        let post = client.post(self.url.clone()).headers(self.headers.clone());
        let sent = post.header(CONTENT_TYPE, kind).body(body).send().await;
        self.read_reply(sent.map_err(|e| message_with_causes(&e))?)
            .await
    }

    /// Reads the collector's answer to a request.
    async fn read_reply(&self, mut answer: Response) -> Result<Option<PartialRejection>, String> {
        let (status, url) = (answer.status(), answer.url().clone());
        let target = answer.headers().get(LOCATION);
        let target = target.and_then(|target| target.to_str().ok().map(str::to_owned));
        let kind = answer.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok().map(str::to_ascii_lowercase));
        let mut body = Vec::new();
        let mut is_complete = false;
        while body.len() < MAX_ANSWER_BYTES {
            match answer.chunk().await {
                Ok(Some(part)) => body.extend_from_slice(&part),
                ended => {
                    is_complete = ended.is_ok();
                    break;
                }
            }
        }
        if status.is_success() {
            // Ignore a body that can't be read completely: the status shows that the request succeeded.
            let partial = if is_complete {
                self.parse_partial_success(kind.as_deref(), &body)
            } else {
                Ok(None)
            };
            let partial = partial.map_err(|what| {
                format!(
                    "{url} answers {status} with {what}, which is no answer of a collector: {}",
                    self.printable_text(&body)
                )
            })?;
            return Ok(partial.map(|partial| {
                let rejected = u64::try_from(partial.rejected).unwrap_or(0);
                let said = format!(
                    "{rejected} {} rejected: {}",
                    self.signal.unit, partial.error_message
                );
                PartialRejection {
                    rejected,
                    reason: format!("{url} answers: {}", self.printable_text(said.as_bytes())),
                }
            }));
        }
        if let Some(target) = target.filter(|_| status.is_redirection()) {
            let target = self.printable_text(target.as_bytes());
            return Err(format!(
                "{url} answers {status} to {target}: redirects are not followed, give the URL that takes {}",
                self.signal.name
            ));
        }
        let said = self.printable_text(&body);
        Err(match said.as_str() {
            "" => format!("{url} answers {status}"),
            said => format!("{url} answers {status}: {said}"),
        })
    }

    /// Parses the body of a successful answer with the content type `kind`; `None` if the collector accepted
    /// everything.
    ///
    /// # Errors
    /// Returns a description of the body if it does not come from a collector, for example if it is a login page with
    /// status 200.
    fn parse_partial_success(
        &self,
        kind: Option<&str>,
        body: &[u8],
    ) -> Result<Option<PartialSuccess>, String> {
        if body.is_empty() {
            return Ok(None);
        }
        let is = |name: &str| kind.is_some_and(|kind| kind.contains(name));
        let encoding = if is("json") {
            OtlpEncoding::Json
        } else if is("protobuf") {
            OtlpEncoding::Protobuf
        } else if is("text/plain") {
            // Some collectors answer with a text such as `OK`.
            return Ok(None);
        } else if kind.is_none() {
            self.encoding
        } else {
            return Err(kind.unwrap_or_default().to_owned());
        };
        match encoding {
            OtlpEncoding::Protobuf => PartialSuccess::from_protobuf(body)
                .map_err(|problem| format!("invalid protobuf ({problem})")),
            OtlpEncoding::Json => PartialSuccess::from_json(body)
                .map_err(|problem| format!("invalid JSON ({problem})")),
        }
    }

    /// Returns the printable text of an answer. Header values are masked, because a collector may repeat them.
    fn printable_text(&self, answer: &[u8]) -> String {
        let text = String::from_utf8_lossy(answer);
        let is_text = |c: char| !c.is_control() && c != char::REPLACEMENT_CHARACTER;
        let words = text.split(|c| !is_text(c)).map(str::trim);
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let mut text = words.join(" ");
        let values = self
            .headers
            .values()
            .filter_map(|value| value.to_str().ok());
        // Mask the words of header values, too: a collector may repeat only the token of `Bearer TOKEN`.
        let parts = values.flat_map(|value| [value].into_iter().chain(value.split_whitespace()));
        let all = parts.chain(self.url.password());
        let mut secrets: Vec<&str> = all.filter(|secret| !secret.is_empty()).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in secrets {
            text = text.replace(secret, "…");
        }
        text.chars().take(MAX_SHOWN_CHARS).collect()
    }
}

fn first_set_variable(
    names: &[&'static str],
    environment: &Environment,
) -> Option<(&'static str, String)> {
    let mut set = names.iter();
    set.find_map(|name| Some((*name, environment.value(name)?)))
}

fn choose_encoding(
    signal: &OtlpSignal,
    environment: &Environment,
) -> Result<OtlpEncoding, Failure> {
    match first_set_variable(&signal.protocol_variables, environment) {
        None => Ok(OtlpEncoding::default()),
        Some((_, text)) if text == "http/protobuf" => Ok(OtlpEncoding::Protobuf),
        Some((_, text)) if text == "http/json" => Ok(OtlpEncoding::Json),
        Some((variable, text)) => Err(Failure::usage(
            format_args!("{variable}: `{text}` is not supported"),
            &format!(
                "{} are posted over HTTP: set it to http/protobuf or http/json, or leave it out",
                signal.name
            ),
        )),
    }
}

/// Adds header fields from percent-encoded `NAME=VALUE,NAME=VALUE` (OpenTelemetry Protocol Exporter specification).
fn add_from_variable(headers: &mut HeaderMap, variable: &str, text: &str) -> Result<(), Failure> {
    let wrong = |number: usize| {
        Failure::usage(
            format_args!("{variable}: entry {number} is not a header field"),
            "write NAME=VALUE,NAME=VALUE, with blanks and commas in values as %20 and %2C",
        )
    };
    let entries = text.split(',').map(str::trim).enumerate();
    for (i, entry) in entries.filter(|(_, entry)| !entry.is_empty()) {
        let (name, value) = entry.split_once('=').ok_or_else(|| wrong(i + 1))?;
        let value = percent_decoded(value.trim());
        insert_header(headers, name.trim(), &value).ok_or_else(|| wrong(i + 1))?;
    }
    Ok(())
}

/// Adds a header field from `NAME: VALUE`; a value `$VARIABLE` is replaced by that environment variable.
fn add_from_flag(
    headers: &mut HeaderMap,
    field: &str,
    environment: &Environment,
) -> Result<(), Failure> {
    const HEADER_FLAG: &str = "--telemetry-header";
    let (name, value) = split_name_value(HEADER_FLAG, field, "x-api-key: $KEY")?;
    let value = match value.strip_prefix('$') {
        None => value.to_owned(),
        Some(variable) => environment.value(variable).ok_or_else(|| {
            Failure::usage(
                format_args!(
                    "{HEADER_FLAG} {name}: the environment variable {variable} is not set"
                ),
                "set it, or write the value itself",
            )
        })?,
    };
    insert_header(headers, name, value.as_bytes()).ok_or_else(|| {
        Failure::usage(
            format_args!("{HEADER_FLAG} {name}: not a valid header field"),
            "use letters, digits and `-` in the name, and printable ASCII in the value",
        )
    })
}

/// Adds a header field, replacing any field with the same name; `None` if name or value is invalid.
fn insert_header(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Option<()> {
    let name = HeaderName::try_from(name).ok()?;
    let mut value = HeaderValue::from_bytes(value).ok()?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Some(())
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let is_hex = |text: &&str| text.bytes().all(|b| b.is_ascii_hexdigit());
        match digits
            .filter(is_hex)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            Some(byte) => (bytes.push(byte), rest = &after[2..]).1,
            None => (bytes.push(first), rest = after).1,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://me:hush@127.0.0.1:4318";

    fn collector(typed: &[&str], variables: &[(&str, &str)]) -> Result<OtlpCollector, String> {
        let typed: Vec<String> = typed.iter().map(|field| (*field).to_owned()).collect();
        let made = OtlpCollector::new(&METRICS_SIGNAL, URL, &typed, &Environment::of(variables));
        made.map_err(|e| e.to_string())
    }

    #[test]
    fn headers_come_from_variables_and_flags() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b%2C%zz, x-two = 2"),
            ("KEY", "of the environment"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ];
        let made = collector(&["X-Two: $KEY"], &variables).unwrap();
        assert_eq!(made.headers["x-key"], "a b,%zz");
        assert_eq!(made.headers["x-two"], "of the environment");
        assert_eq!(
            (made.encoding, made.url.path()),
            (OtlpEncoding::Json, METRICS_SIGNAL.path)
        );
        let metrics = ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-key=c");
        let made = collector(&[], &[variables[0], metrics]).unwrap();
        assert_eq!(made.headers["x-key"], "c");
        assert_eq!(made.encoding, OtlpEncoding::Protobuf);
        let environment = Environment::of(&[
            variables[0],
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=d"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-key=c"),
        ]);
        let made = OtlpCollector::new(&SPANS_SIGNAL, "http://127.0.0.1:4318", &[], &environment);
        let made = made.map_err(|e| e.to_string()).unwrap();
        assert_eq!(
            (&made.headers["x-key"], made.url.path()),
            (&HeaderValue::from_static("d"), "/v1/traces")
        );
    }

    #[test]
    fn invalid_settings_are_reported_without_values() {
        let of = |variable, text| collector(&[], &[(variable, text)]).unwrap_err();
        let said = of("OTEL_EXPORTER_OTLP_HEADERS", "x=1,hush");
        assert!(
            said.contains("OTEL_EXPORTER_OTLP_HEADERS: entry 2"),
            "{said}"
        );
        assert!(!said.contains("hush"), "{said}");
        let said = of("OTEL_EXPORTER_OTLP_PROTOCOL", "other");
        assert!(said.contains("`other` is not supported"), "{said}");
        let said = collector(&["x y: hush"], &[]).unwrap_err();
        assert!(said.contains("--telemetry-header x y"), "{said}");
        assert!(!said.contains("hush"), "{said}");
        let said = collector(&["x: $NONE"], &[]).unwrap_err();
        assert!(said.contains("variable NONE is not set"), "{said}");
    }

    #[test]
    fn collector_response_is_shown_without_header_values() {
        let made = collector(&["x-key: hush"], &[]).unwrap();
        let said = made.printable_text(b"\x08\x03\x12\x10no such key:\nhush\xff");
        assert_eq!(said, "no such key: …");
    }
}
