//! A check of a `grpc.examples.echo.Echo` service: makes one call of each kind and verifies the messages, headers and
//! trailers of the responses. The command `plimsoll check echo` uses this module.

use std::time::Duration;

use plimsoll_model::Outcome;
use plimsoll_model::formats::quantity::plural;
use serde::Serialize;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::client::{GrpcConnection, outcome_from_code};
use super::target::generated::echo::{EchoRequest, EchoResponse};

/// The options of the check.
#[derive(Clone, Debug)]
pub struct EchoCheck {
    /// The text that the server must return.
    pub message: String,
    /// The number of responses that the server must send to one message in server streaming.
    pub messages: usize,
    /// The number of messages that the client sends in client and bidirectional streaming.
    pub sent: usize,
    /// The deadline of each call.
    pub deadline: Duration,
}

/// The result of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// The method's name.
    pub case: &'static str,
    /// The entry `timestamp` of the initial metadata.
    pub header_timestamp: Option<String>,
    /// The entry `location` of the initial metadata.
    pub header_location: Option<String>,
    /// The received texts, in order.
    pub messages: Vec<String>,
    /// The entry `timestamp` of the trailers.
    pub trailer_timestamp: Option<String>,
    /// The name of the gRPC status.
    pub status: &'static str,
    /// `grpc-message`, decoded.
    pub status_message: String,
    /// The problems found; empty: the call passed.
    pub problems: Vec<String>,
}

/// The methods to call, in order.
pub const ECHO_METHODS: [&str; 4] = [
    "UnaryEcho",
    "ServerStreamingEcho",
    "ClientStreamingEcho",
    "BidirectionalStreamingEcho",
];

/// Makes the call `case`, one of [`ECHO_METHODS`], and checks its result.
pub async fn run(connection: &GrpcConnection, case: &'static str, check: &EchoCheck) -> CaseResult {
    let (sent, expected) = match case {
        "UnaryEcho" => (1, 1),
        "ServerStreamingEcho" => (1, check.messages),
        "ClientStreamingEcho" => (check.sent, 1),
        _ => (check.sent, check.sent),
    };
    let mut result = CaseResult {
        case,
        status: Outcome::Ok.code(),
        ..CaseResult::default()
    };
    let mut grpc = connection.grpc_client();
    let asked = make_call(&mut grpc, case, sent, check, &mut result);
    match tokio::time::timeout(check.deadline, asked).await {
        Ok(Ok(())) => {}
        Ok(Err(status)) => {
            let outcome = outcome_from_code(status.code());
            result.status = outcome.code();
            result.status_message = status.message().to_owned();
            let message = match status.message() {
                "" => outcome.explanation(),
                message => message,
            };
            let problem = format!("status {}: {message}", result.status);
            result.problems.push(problem);
            return result;
        }
        Err(_) => {
            let limit = check.deadline;
            result.status = Outcome::DeadlineExceeded.code();
            result
                .problems
                .push(format!("did not end within {limit:?}"));
            return result;
        }
    }
    check_result(&mut result, expected, &check.message);
    result
}

fn check_result(result: &mut CaseResult, expected: usize, message: &str) {
    let got = result.messages.len();
    if got != expected {
        let problem = format!("{} instead of {expected}", plural(got as u64, "message"));
        result.problems.push(problem);
    }
    if let Some(other) = result.messages.iter().find(|text| *text != message) {
        let problem = format!("received the message {other:?}, but {message:?} was sent");
        result.problems.push(problem);
    }
    for (place, timestamp) in [
        ("headers", &result.header_timestamp),
        ("trailers", &result.trailer_timestamp),
    ] {
        if timestamp.as_ref().is_none_or(String::is_empty) {
            result.problems.push(format!("no timestamp in the {place}"));
        }
    }
}

/// Makes one call as a stream. All kinds of calls are streams on the wire, and only a stream gives access to
/// all trailers.
async fn make_call(
    grpc: &mut Grpc<GrpcConnection>,
    case: &str,
    sent: usize,
    check: &EchoCheck,
    result: &mut CaseResult,
) -> Result<(), Status> {
    let unavailable = |e| Status::unavailable(format!("{e}"));
    grpc.ready().await.map_err(unavailable)?;
    let path = format!("/grpc.examples.echo.Echo/{case}");
    let path = PathAndQuery::try_from(path).map_err(|e| Status::internal(e.to_string()))?;
    let request = EchoRequest {
        message: check.message.clone(),
    };
    let requests = tokio_stream::iter(vec![request; sent]);
    let codec = ProstCodec::<EchoRequest, EchoResponse>::default();
    let answer = grpc.streaming(Request::new(requests), path, codec).await?;
    result.header_timestamp = metadata_text(answer.metadata(), "timestamp");
    result.header_location = metadata_text(answer.metadata(), "location");
    let mut messages: Streaming<EchoResponse> = answer.into_inner();
    while let Some(message) = messages.message().await? {
        result.messages.push(message.message);
    }
    if let Some(trailers) = messages.trailers().await? {
        result.trailer_timestamp = metadata_text(&trailers, "timestamp");
    }
    Ok(())
}

fn metadata_text(metadata: &MetadataMap, name: &str) -> Option<String> {
    Some(metadata.get(name)?.to_str().ok()?.to_owned())
}
