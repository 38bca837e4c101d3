//! Prepares a call: checks and encodes it once, for all connections.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::rows::template::VaryingMessages;
use plimsoll_wire::hpack::Encoder;

use super::call::{GrpcCall, MessageCompression, MessageShapes, VaryingAnswer};
use super::message::{PREFIX_LEN, write_message};
use super::stream_exchange::StreamScript;
use super::timeout::format_timeout;
use crate::http2::{BodyKind, RequestTemplate, VaryingFields};
use crate::interface::prepare_error::RequestError;
use crate::journey::{CaptureLevel, SharedAnswerReader};

/// The input from which calls are prepared.
#[derive(Clone, Copy, Debug)]
pub struct GrpcRequest<'a> {
    /// The call.
    pub call: &'a GrpcCall,
    /// `host:port` of the target; [`GrpcCall::authority`] takes precedence.
    pub authority: &'a str,
    /// Whether the connection uses TLS, so that `:scheme` is `https`.
    pub secure: bool,
    /// The deadline, sent to the server as `grpc-timeout`.
    pub deadline: Option<Duration>,
}

/// The `user-agent` of calls whose plan has none.
const OWN_USER_AGENT: &str = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));

/// Maximum size of a message before compression, in bytes: the largest length that its prefix can express, less the prefix
/// itself and 1 MiB, which is more than gzip's overhead on incompressible data.
const MAX_MESSAGE_BYTES: usize = u32::MAX as usize - PREFIX_LEN - (1 << 20);

/// A prepared call.
#[derive(Debug)]
pub(super) struct PreparedGrpcCall {
    pub(super) request: RequestTemplate,
    /// The plain header block without `grpc-timeout`, and the deadline; `None`: the call has no deadline.
    pub(super) without_timeout: Option<(Box<[u8]>, Duration)>,
    /// Maximum size of a response's message, in bytes.
    pub(super) max_message: u32,
    /// Maximum size of a response's metadata, in bytes.
    pub(super) max_head: u32,
    /// The layout that response messages must have; `None`: not checked.
    pub(super) answer_shapes: Option<Arc<MessageShapes>>,
    /// The varying content that responses must have; `None`: it does not vary.
    pub(super) varying_answer: Option<Box<VaryingAnswer>>,
    /// The varying messages; `None`: every call sends the same messages.
    pub(super) varying: Option<VaryingMessages>,
    pub(super) compression: Option<MessageCompression>,
    /// The prepared messages of streams; `None`: the call is unary.
    pub(super) script: Option<StreamScript>,
    /// The parts of the response to keep and the reader of its messages; `None`: the call is not a journey's step.
    pub(super) capture: Option<(CaptureLevel, Option<SharedAnswerReader>)>,
    /// The names of metadata whose values are taken bytes in base64, with the indices of the taken values.
    pub(super) binary_captures: Vec<(String, u16)>,
}

impl PreparedGrpcCall {
    pub(super) fn new(request: &GrpcRequest<'_>) -> Result<PreparedGrpcCall, RequestError> {
        let call = request.call;
        check_method(&call.method)?;
        let authority = call.authority.as_deref().unwrap_or(request.authority);
        if authority.is_empty() || !authority.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(RequestError::new(format_args!(
                "authority `{authority}` contains a character that a host name can't have"
            )));
        }
        let path = format!("/{}", call.method);
        let timeout = request.deadline.map(format_timeout);
        let user_agent = call.user_agent.as_deref().unwrap_or(OWN_USER_AGENT);
        check_metadata("user-agent", user_agent)?;

        let mut fields = vec![
            (":method", "POST"),
            (":scheme", if request.secure { "https" } else { "http" }),
            (":path", &path[..]),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        fields.push(("user-agent", user_agent));
        match call.compression {
            None => {}
            Some(MessageCompression::Gzip) => fields.extend([
                ("grpc-encoding", "gzip"),
                ("grpc-accept-encoding", "identity,gzip"),
            ]),
        }
        if let Some(timeout) = &timeout {
            fields.push(("grpc-timeout", timeout));
        }
        for (name, value) in &call.metadata {
            check_metadata(name, value)?;
            fields.push((name, value));
        }
        let varying_fields = call.varying_metadata.as_ref();
        let varying_fields = varying_fields
            .and_then(|all| VaryingFields::new(&all.variation, (None, None), &all.fields));
        for name in varying_fields.iter().flat_map(VaryingFields::names) {
            check_metadata(name, "")?;
        }
        let size = fields
            .iter()
            .map(|(name, value)| name.len() + value.len() + 32)
            .sum::<usize>()
            + varying_fields
                .as_ref()
                .map_or(0, VaryingFields::max_header_list_bytes);
        if size > plimsoll_wire::http2::MAX_HEADER_BLOCK_BYTES {
            return Err(RequestError::new(format_args!(
                "request metadata of {size} bytes is over the limit of 65536"
            )));
        }

        let without_timeout = request.deadline.map(|deadline| {
            let others = fields.iter().filter(|(name, _)| *name != "grpc-timeout");
            (Encoder::encode_plain(others.copied()).into(), deadline)
        });

        let varying = call.varying.clone();
        let most = largest_message(call);
        if most > MAX_MESSAGE_BYTES {
            return Err(too_large_error(most));
        }
        let mut body = Vec::with_capacity(PREFIX_LEN + call.message.len());
        write_message(&mut body, call.compression, |out| {
            out.extend_from_slice(&call.message);
        });

        let script = call.stream.as_ref().map(|stream| match varying {
            Some(_) => Ok(StreamScript::new_varying(stream)),
            None => StreamScript::new(stream, call.compression)
                .ok_or_else(|| too_large_error(usize::MAX)),
        });
        let script = script.transpose()?;
        let bodies = match (&script, &varying) {
            (Some(_), _) => BodyKind::Streamed,
            (None, Some(_)) => BodyKind::PerCall,
            (None, None) => BodyKind::Same,
        };
        Ok(PreparedGrpcCall {
            request: RequestTemplate::new(&fields, varying_fields, body, bodies),
            script,
            varying,
            compression: call.compression,
            without_timeout,
            answer_shapes: call.answer_shapes.clone(),
            varying_answer: call.varying_answer.clone(),
            capture: None,
            binary_captures: binary_captures(call),
            max_message: u32::try_from(call.max_message).unwrap_or(u32::MAX),
            max_head: call
                .max_head
                .max(plimsoll_wire::http2::MAX_HEADER_LIST_BYTES),
        })
    }

    /// Prepares the call of a journey's step. `capture` selects the parts of its responses that are kept.
    pub(super) fn for_step(
        request: &GrpcRequest<'_>,
        capture: CaptureLevel,
    ) -> Result<PreparedGrpcCall, RequestError> {
        let prepared = PreparedGrpcCall::new(request)?;
        Ok(PreparedGrpcCall {
            // The steps of a journey have different requests, so a request can't rely on the peer's dynamic table.
            request: prepared.request.without_dynamic_table(),
            capture: Some((capture, request.call.answer_schema.clone())),
            ..prepared
        })
    }

    /// Returns the header block of a call that was due `waited` ago, with its remaining time as
    /// `grpc-timeout`; `None`: the call has no deadline.
    pub(super) fn header_block_with_timeout(&self, waited: Duration) -> Option<Vec<u8>> {
        let (block, deadline) = self.without_timeout.as_ref()?;
        let left = deadline.saturating_sub(waited).max(Duration::from_nanos(1));
        let left = format_timeout(left);
        let mut block = block.to_vec();
        block.append(&mut Encoder::encode_plain([("grpc-timeout", &*left)]));
        Some(block)
    }
}

fn check_method(method: &str) -> Result<(), RequestError> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
    match method.split_once('/') {
        Some((service, name)) if is_name(service) && is_name(name) && !name.contains('/') => Ok(()),
        _ => Err(RequestError::new(format_args!(
            "method `{method}` is not of the form package.Service/Method"
        ))),
    }
}

/// Returns the size of the largest message of a call, in bytes.
fn largest_message(call: &GrpcCall) -> usize {
    match &call.varying {
        None => call.message.len(),
        Some(varying) => {
            let sizes = varying.messages.iter().map(|message| message.max_bytes());
            sizes.max().unwrap_or(0)
        }
    }
}

fn too_large_error(bytes: usize) -> RequestError {
    RequestError::new(format_args!(
        "a request message of {bytes} bytes is over gRPC's limit of 4294967290"
    ))
}

/// Returns the names of metadata whose values are taken bytes in base64, with the indices of the taken values.
fn binary_captures(call: &GrpcCall) -> Vec<(String, u16)> {
    let metadata = call.varying_metadata.iter().flat_map(|all| &all.fields);
    let captures =
        metadata.filter_map(|field| Some((field.name.clone(), field.binary_captured_index()?)));
    captures.collect()
}

/// Checks a metadata entry (gRPC over HTTP/2, "Custom-Metadata").
fn check_metadata(name: &str, value: &str) -> Result<(), RequestError> {
    let is_key_byte = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.');
    if name.is_empty() || !name.bytes().all(is_key_byte) {
        return Err(RequestError::new(format_args!(
            "metadata key `{name}` is not valid: use lower-case letters, digits, `_`, `-` and `.`"
        )));
    }
    let reserved = [
        "te",
        "content-type",
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
        "content-length",
    ];
    let binary = name.ends_with("-bin");
    if reserved.contains(&name) || (name.starts_with("grpc-") && !binary) {
        return Err(RequestError::new(format_args!(
            "metadata key `{name}` is reserved: gRPC or HTTP/2 sets it itself"
        )));
    }
    if !value.bytes().all(|b| (0x20..=0x7e).contains(&b)) || value.trim() != value {
        return Err(RequestError::new(format_args!(
            "the value of metadata key `{name}` is not printable ASCII (use a key ending in -bin for bytes)"
        )));
    }
    // Several values may be joined by commas.
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=,".contains(&b);
    if binary && !value.bytes().all(is_base64) {
        return Err(RequestError::new(format_args!(
            "the value of metadata key `{name}` is not base64, which keys ending in -bin require"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, metadata: &[(&str, &str)]) -> GrpcCall {
        GrpcCall {
            method: method.to_owned(),
            message: vec![7; 40_000],
            metadata: metadata
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            max_message: 1 << 22,
            ..GrpcCall::default()
        }
    }

    fn prepare(call: &GrpcCall) -> Result<PreparedGrpcCall, RequestError> {
        let authority = "localhost:50051";
        PreparedGrpcCall::new(&GrpcRequest {
            call,
            authority,
            secure: false,
            deadline: None,
        })
    }

    #[test]
    fn request_consists_of_complete_frames() {
        let call = call("score.ScoreService/GetScore", &[("x-a", "1")]);
        let prepared = prepare(&call).unwrap().request;
        // HEADERS and three DATA frames.
        assert_eq!(prepared.id_offsets.len(), 4);
        assert_eq!(prepared.body.len(), 40_005);
        assert!(
            prepared.steady_block.bytes().len() < 16,
            "{}",
            prepared.steady_block.bytes().len()
        );
        assert!(prepared.table_needed < 500);
    }

    #[test]
    fn invalid_request_error_names_cause() {
        for (method, metadata, error) in [
            ("Method", vec![], "method `Method` is not of the form"),
            ("/a.S/M", vec![], "method `/a.S/M` is not of the form"),
            ("a.S/", vec![], "method `a.S/` is not of the form"),
            ("a.S/M N", vec![], "method `a.S/M N` is not of the form"),
            (
                "a.S/M",
                vec![("X-A", "1")],
                "metadata key `X-A` is not valid",
            ),
            ("a.S/M", vec![("", "1")], "metadata key `` is not valid"),
            ("a.S/M", vec![("te", "1")], "metadata key `te` is reserved"),
            (
                "a.S/M",
                vec![("grpc-timeout", "1S")],
                "metadata key `grpc-timeout` is reserved",
            ),
            (
                "a.S/M",
                vec![("x", "a\nb")],
                "the value of metadata key `x` is not printable",
            ),
            (
                "a.S/M",
                vec![("x-bin", "a b")],
                "the value of metadata key `x-bin` is not base64",
            ),
        ] {
            let metadata: Vec<_> = metadata;
            let found = prepare(&call(method, &metadata)).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
        assert!(
            prepare(&call(
                "a.S/M",
                &[("x-bin", "aGVsbG8="), ("user-agent", "me")]
            ))
            .is_ok()
        );
    }
}
