//! Spans of a run's slowest and sampled calls, as OTLP 1 messages (opentelemetry-proto, `trace.proto`) with the
//! attributes of OpenTelemetry's semantic conventions for HTTP and RPC clients.
//!
//! The span of a call covers its response time, from when it was due to its end. The span's id is the parent id that
//! the request carried, so the service's spans are its children, as are the call's phases. Invariant: a child lies
//! within its parent, whatever the run directory contains, and the number of spans is bounded.

use std::collections::BTreeSet;

use plimsoll_model::Outcome;
use plimsoll_model::records::record::{
    MAX_SAMPLED_CALLS, MAX_SLOWEST_CALLS, SpanFacts, TracedCall,
};
use plimsoll_model::rows::template::SpanId;
use plimsoll_model::runs::run::Run;
use prost::Message;
use serde::{Serialize, Serializer};

use crate::exports::otlp::{
    ExportRequest, InstrumentationScope, KeyValue, Resource, attribute, number_attribute, text,
};

/// Maximum number of calls in a request, which keeps the request well below the limits of collectors.
const MAX_CALLS_PER_REQUEST: usize = 128;
/// `SPAN_KIND_INTERNAL`.
const INTERNAL_KIND: i32 = 1;
/// `SPAN_KIND_CLIENT`.
const CLIENT_KIND: i32 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR_STATUS: i32 = 2;
/// The W3C flag `sampled`, and the bit that says that it is known whether the parent is remote.
const SPAN_FLAGS: u32 = 0x101;
/// The highest status of an RPC; outcomes up to this number are numbered like the statuses.
const MAX_RPC_STATUS: usize = 16;

/// An export request, `ExportTraceServiceRequest`, with spans of one run.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpansRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<OtlpSpan>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpSpan {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(serialize_with = "hexadecimal")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(serialize_with = "hexadecimal")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    #[serde(serialize_with = "hexadecimal", skip_serializing_if = "Vec::is_empty")]
    parent_span_id: Vec<u8>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(serialize_with = "text")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    #[serde(serialize_with = "text")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<SpanStatus>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct SpanStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

/// Serialises an id: OTLP's JSON has ids in hexadecimal, unlike other bytes.
fn hexadecimal<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    to.serialize_str(&digits.concat())
}

impl SpansRequest {
    /// Returns requests with the spans of the run's slowest and sampled calls, without those of the warm-up; empty if
    /// the run's requests carried no trace ids.
    pub fn from_run(run: &Run) -> Vec<SpansRequest> {
        let requests = SpanTemplates::from_run(run);
        let calls = exported_calls(run);
        let chunks = calls.chunks(MAX_CALLS_PER_REQUEST).map(|calls| {
            let spans = calls.iter().flat_map(|call| requests.spans(call)).collect();
            SpansRequest {
                resource_spans: vec![ResourceSpans {
                    resource: Some(resource(run)),
                    scope_spans: vec![ScopeSpans {
                        scope: Some(InstrumentationScope::new(&run.header.tool_version)),
                        spans,
                    }],
                }],
            }
        });
        chunks.collect()
    }

    /// Returns the number of spans.
    pub fn span_count(&self) -> u64 {
        let scopes = self.resource_spans.iter().flat_map(|r| &r.scope_spans);
        scopes.map(|scope| scope.spans.len() as u64).sum()
    }
}

/// Returns the spans of runs in the format of OpenTelemetry's file exporter: a request in JSON on each line.
pub fn to_json_lines(runs: &[Run]) -> String {
    let requests = runs.iter().flat_map(SpansRequest::from_run);
    let lines = requests.map(|request| String::from_utf8(request.to_json()).unwrap_or_default());
    lines.map(|line| line + "\n").collect()
}

fn resource(run: &Run) -> Resource {
    let mut attributes = vec![
        attribute("service.name", "plimsoll"),
        attribute("service.version", &run.header.tool_version),
        attribute("plimsoll.run", &run.header.name),
    ];
    if let Some(hash) = &run.header.plan_hash {
        attributes.push(attribute("plimsoll.plan_hash", hash));
    }
    Resource { attributes }
}

/// A call that is exported as spans.
struct ExportedCall {
    call: TracedCall,
    facts: SpanFacts,
    /// Why the call was kept: `slowest` or `sample`.
    kept_as: &'static str,
}

/// Returns the calls in the order in which they were due, each of them once.
fn exported_calls(run: &Run) -> Vec<ExportedCall> {
    let measured = run.measured_record();
    // A file may contain more calls than Plimsoll writes, and in another order.
    let mut slowest: Vec<&TracedCall> = measured.slowest.calls().iter().collect();
    slowest.truncate(MAX_SLOWEST_CALLS);
    let sample_size = run.header.span_sample.unwrap_or(0) as usize;
    let sampled = measured.sampled.calls().iter();
    let sampled = sampled.take(sample_size.min(MAX_SAMPLED_CALLS));
    let slowest = slowest.into_iter().map(|call| (call, "slowest"));
    let all = slowest.chain(sampled.map(|sampled| (&sampled.call, "sample")));
    let mut known = BTreeSet::new();
    let mut calls: Vec<ExportedCall> = all
        .filter_map(|(call, kept_as)| {
            let facts = call.span?;
            known
                .insert((call.trace_id, facts.span_id))
                .then_some(ExportedCall {
                    call: *call,
                    facts,
                    kept_as,
                })
        })
        .collect();
    calls.sort_by_key(|call| (call.facts.due_unix_ns, call.call.trace_id));
    calls
}

/// The names and attributes of the spans of a run's calls.
struct SpanTemplates {
    /// The protocol's name, with which the names of the conventions' attributes begin or end.
    protocol: String,
    /// Whether a call invokes a method of a service, rather than being a request with a method and a path.
    is_rpc: bool,
    /// Name and attributes of calls that are not steps of a journey.
    common: SpanTemplate,
    /// Names and attributes of a journey's steps.
    steps: Vec<SpanTemplate>,
}

/// Name and attributes of the spans of one kind of call.
struct SpanTemplate {
    name: String,
    attributes: Vec<KeyValue>,
}

impl SpanTemplates {
    fn from_run(run: &Run) -> SpanTemplates {
        let header = &run.header;
        let protocol = header.protocol.clone().unwrap_or_default();
        let target = header.target.as_deref().unwrap_or_default();
        let called = header.call.as_deref().unwrap_or_default();
        let request = called.split_once(' ');
        let request = request.filter(|(_, path)| path.starts_with('/'));
        let service = called.split_once('/').filter(|_| request.is_none());
        let mut common = match (request, service) {
            (Some((method, path)), _) => {
                SpanTemplate::from_request(&protocol, method, target, path)
            }
            (_, Some((service, method))) => SpanTemplate {
                name: called.to_owned(),
                attributes: vec![
                    attribute("rpc.system", &protocol),
                    attribute("rpc.service", service),
                    attribute("rpc.method", method),
                ],
            },
            (None, None) => SpanTemplate {
                name: called.to_owned(),
                attributes: Vec::new(),
            },
        };
        let mut server = server_attributes(target);
        if let Some(version) = &header.version {
            server.push(attribute("network.protocol.version", version));
        }
        common.attributes.extend(server.clone());
        let record = run.measured_record();
        let (methods, paths) = (run.plan_step_texts("method"), run.plan_step_texts("path"));
        let steps = record.steps.iter().enumerate().map(|(i, step)| {
            let of = |texts: &[Option<String>]| texts.get(i).cloned().flatten();
            let method = of(&methods).unwrap_or_else(|| "GET".to_owned());
            let path = of(&paths).unwrap_or_else(|| "/".to_owned());
            let mut name = SpanTemplate::from_request(&protocol, &method, target, &path);
            name.name.clone_from(&step.name);
            name.attributes.push(attribute("plimsoll.step", &step.name));
            name.attributes.extend(server.clone());
            name
        });
        let steps = steps.collect();
        SpanTemplates {
            is_rpc: service.is_some(),
            protocol,
            common,
            steps,
        }
    }

    /// Returns the span of a call and the spans of its phases.
    fn spans(&self, exported: &ExportedCall) -> Vec<OtlpSpan> {
        let ExportedCall {
            call,
            facts,
            kept_as,
        } = exported;
        let step = facts.step.and_then(|step| self.steps.get(step as usize));
        let SpanTemplate { name, attributes } = step.unwrap_or(&self.common);
        let trace_id = call.trace_id.to_bytes().to_vec();
        let times = PhaseTimes::new(call, facts);
        let span = |id: SpanId, name: &str, (start, end): (u64, u64)| OtlpSpan {
            trace_id: trace_id.clone(),
            span_id: id.to_bytes().to_vec(),
            flags: SPAN_FLAGS,
            name: name.to_owned(),
            kind: INTERNAL_KIND,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            ..OtlpSpan::default()
        };
        let mut root = span(facts.span_id, name, (times.due, times.end));
        root.kind = CLIENT_KIND;
        root.parent_span_id = facts
            .parent_span_id
            .map_or_else(Vec::new, |id| id.to_bytes().to_vec());
        root.attributes.clone_from(attributes);
        root.attributes.extend([
            attribute("plimsoll.outcome", call.outcome.code()),
            attribute("plimsoll.kept_as", kept_as),
            number_attribute("plimsoll.call", facts.number),
            number_attribute("plimsoll.worker", u64::from(call.worker)),
            number_attribute("plimsoll.sent_bytes", u64::from(facts.bytes_sent)),
            number_attribute("plimsoll.received_bytes", u64::from(facts.bytes_received)),
        ]);
        if let Some(connection) = call.connection {
            root.attributes.push(number_attribute(
                "plimsoll.connection",
                u64::from(connection),
            ));
        }
        root.attributes.extend(self.status_attribute(call.outcome));
        if call.outcome.is_error() {
            let code = call.outcome.code();
            root.attributes.push(attribute("error.type", code));
            root.status = Some(SpanStatus {
                message: code.to_owned(),
                code: ERROR_STATUS,
            });
        }
        let children = times.phases().into_iter().zip(0_u64..);
        let children = children.map(|((name, parent, times), nth)| {
            // The ids of phases count down from the highest number, because the ids of calls that share a request count
            // up from 0.
            let id = |nth: u64| facts.span_id.child_id(u64::MAX - nth);
            let mut child = span(id(nth), name, times);
            let parent = parent.map_or(facts.span_id, id);
            child.parent_span_id = parent.to_bytes().to_vec();
            child
        });
        let children: Vec<OtlpSpan> = children
            .filter(|child| child.end_time_unix_nano > child.start_time_unix_nano)
            .collect();
        std::iter::once(root).chain(children).collect()
    }

    /// Returns the response status, if the outcome identifies one.
    fn status_attribute(&self, outcome: Outcome) -> Option<KeyValue> {
        let protocol = &self.protocol;
        if self.is_rpc {
            let status = outcome.index();
            let key = format!("rpc.{protocol}.status_code");
            return (status <= MAX_RPC_STATUS).then(|| number_attribute(&key, status as u64));
        }
        let family = format!("{}_", protocol.to_ascii_uppercase());
        let digits = outcome.code().strip_prefix(&family)?.get(..3)?;
        let status = digits.parse().ok()?;
        let key = format!("{protocol}.response.status_code");
        Some(number_attribute(&key, status))
    }
}

impl SpanTemplate {
    /// Returns the name and attributes of the spans of a request. A path with parts that differ from call to call or
    /// were secret gets no URL attribute.
    fn from_request(protocol: &str, method: &str, target: &str, path: &str) -> SpanTemplate {
        let mut attributes = vec![attribute(&format!("{protocol}.request.method"), method)];
        if path.contains("{{") {
            attributes.push(attribute("url.template", path));
        } else if let Some((scheme, authority)) = scheme_and_authority(target) {
            let path = match path.find("=$") {
                Some(_) => path.split('?').next().unwrap_or_default(),
                None => path,
            };
            let url = format!("{scheme}://{authority}{path}");
            attributes.push(attribute("url.full", &url));
        }
        SpanTemplate {
            name: method.to_owned(),
            attributes,
        }
    }
}

/// Returns the scheme and authority of a URL, without user and password.
fn scheme_and_authority(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@');
    Some((scheme, host.map_or(authority, |(_, host)| host)))
}

fn server_attributes(target: &str) -> Vec<KeyValue> {
    let Some((_, authority)) = scheme_and_authority(target) else {
        return vec![attribute("server.address", target)];
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, port),
        _ => (authority, ""),
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let port: Option<u16> = port.parse().ok();
    let mut attributes = vec![attribute("server.address", address)];
    attributes.extend(port.map(|port| number_attribute("server.port", u64::from(port))));
    attributes
}

/// When the phases of a call began, in nanoseconds since 1970; each is at least the one before.
struct PhaseTimes {
    due: u64,
    /// When the call's own connection was begun; equal to `sent` if it had none.
    connecting: u64,
    /// Ends of the connection's phases: name resolution, TCP, TLS, and the protocol's own setup.
    connected: [u64; 4],
    sent: u64,
    first_byte: u64,
    end: u64,
}

/// A phase: its name, the index of its parent phase, and its start and end.
type CallPhase = (&'static str, Option<u64>, (u64, u64));

impl PhaseTimes {
    fn new(call: &TracedCall, facts: &SpanFacts) -> PhaseTimes {
        let due = facts.due_unix_ns;
        let end = due.saturating_add(call.response_ns);
        let sent = end.saturating_sub(call.service_ns).max(due);
        let first_byte = sent.saturating_add(facts.first_byte_ns).min(end);
        let phases = facts.phases.unwrap_or_default();
        let lengths = [
            phases.resolve_ns,
            phases.connect_ns,
            phases.handshake_ns,
            phases.ready_ns,
        ];
        let total = lengths.into_iter().fold(0, u64::saturating_add);
        let connecting = sent.saturating_sub(total).max(due);
        let mut at = connecting;
        let connected = lengths.map(|length| {
            at = at.saturating_add(length).min(sent);
            at
        });
        PhaseTimes {
            due,
            connecting,
            connected,
            sent,
            first_byte,
            end,
        }
    }

    fn phases(&self) -> [CallPhase; 8] {
        const CONNECT_PHASE_INDEX: Option<u64> = Some(1);
        let [resolved, established, secured, ready] = self.connected;
        [
            ("wait", None, (self.due, self.connecting)),
            ("connect", None, (self.connecting, self.sent)),
            ("dns", CONNECT_PHASE_INDEX, (self.connecting, resolved)),
            ("tcp", CONNECT_PHASE_INDEX, (resolved, established)),
            ("tls", CONNECT_PHASE_INDEX, (established, secured)),
            ("ready", CONNECT_PHASE_INDEX, (secured, ready)),
            ("request", None, (self.sent, self.first_byte)),
            ("receive", None, (self.first_byte, self.end)),
        ]
    }
}
