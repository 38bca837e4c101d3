//! Protobuf's own conformance suite for the binary format and for JSON, against the conversion of requests and
//! responses, and against the validation of responses during a load.
//!
//! The suite's runner starts this test binary again as its testee, which answers over a pipe. `tests/setup.sh peers`
//! installs the runner. `known_failures.txt` lists the cases that are expected to fail, with the reasons; the runner
//! fails if a listed case passes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message as _;

use crate::grpc::call::BinaryMessage;
use crate::grpc::message::MessageSink as _;
use crate::grpc::schema::{GrpcMethod, Schema};
use crate::grpc::wire_validator::{ValidatingSink, WireValidator};

/// Files of the suite that define its messages. The file of the unreleased edition is not among them.
const PROTO_FILES: [&str; 5] = [
    "test_messages_proto2.proto",
    "test_messages_proto3.proto",
    "test_messages_proto2_editions.proto",
    "test_messages_proto3_editions.proto",
    "test_messages_edition2023.proto",
];
/// The messages that requests of the suite contain, below `protobuf_test_messages`.
const MESSAGE_TYPES: [&str; 6] = [
    "proto2.TestAllTypesProto2",
    "proto3.TestAllTypesProto3",
    "editions.proto2.TestAllTypesProto2",
    "editions.proto3.TestAllTypesProto3",
    "editions.TestAllTypesEdition2023",
    "proto2.TestAllRequiredTypesProto2",
];
/// The full name of the test that is the testee.
const TESTEE_TEST: &str = "grpc::tests::conformance::testee_answers_requests";
/// The newest edition whose cases are run.
const MAX_EDITION: &str = "2023";

/// Numbers of `conformance.WireFormat`.
mod output_format {
    pub(super) const PROTOBUF: i32 = 1;
    pub(super) const JSON: i32 = 2;
}
/// `conformance.TestCategory.JSON_IGNORE_UNKNOWN_PARSING_TEST`.
const UNKNOWN_KEYS_IGNORED: i32 = 3;

/// `conformance.ConformanceRequest`, without the fields that this testee does not need.
#[derive(Clone, PartialEq, prost::Message)]
struct ConformanceRequest {
    #[prost(bytes = "vec", optional, tag = "1")]
    binary: Option<Vec<u8>>,
    #[prost(string, optional, tag = "2")]
    json: Option<String>,
    #[prost(int32, tag = "3")]
    output_format: i32,
    #[prost(string, tag = "4")]
    message_type: String,
    #[prost(int32, tag = "5")]
    category: i32,
}

/// `conformance.ConformanceResponse`, of which one field is set.
#[derive(Clone, PartialEq, prost::Message)]
struct ConformanceResponse {
    #[prost(string, optional, tag = "1")]
    parse_error: Option<String>,
    #[prost(string, optional, tag = "6")]
    serialize_error: Option<String>,
    #[prost(bytes = "vec", optional, tag = "3")]
    binary: Option<Vec<u8>>,
    #[prost(string, optional, tag = "4")]
    json: Option<String>,
    #[prost(string, optional, tag = "2")]
    runtime_error: Option<String>,
    #[prost(string, optional, tag = "5")]
    skipped: Option<String>,
}

impl ConformanceResponse {
    fn from_parse_error(problem: String) -> ConformanceResponse {
        ConformanceResponse {
            parse_error: Some(problem),
            ..ConformanceResponse::default()
        }
    }

    fn from_skip_reason(reason: &str) -> ConformanceResponse {
        ConformanceResponse {
            skipped: Some(reason.to_owned()),
            ..ConformanceResponse::default()
        }
    }
}

fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers/conformance")
}

/// Compiles the suite's messages, and a service with a method for each message type.
fn compile_schema() -> Schema {
    let include = suite().join("site/protoc/include/conformance/messages");
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = String::from("syntax = \"proto3\";\n");
    for file in PROTO_FILES {
        service.push_str(&format!("import \"{file}\";\n"));
    }
    service.push_str("service Suite {\n");
    for (i, name) in MESSAGE_TYPES.iter().enumerate() {
        let name = format!(".protobuf_test_messages.{name}");
        service.push_str(&format!("  rpc M{i}({name}) returns ({name});\n"));
    }
    service.push_str("}\n");
    let path = folder.path().join("suite.proto");
    fs::write(&path, service).expect("a file");
    Schema::from_protos(&[path], &[include]).expect("the suite's messages")
}

/// Converts the payload of `request`, as requests are made of plans and responses are shown.
fn answer(schema: &Schema, request: ConformanceRequest) -> ConformanceResponse {
    // The runner begins with a question for cases that the testee expects to fail; this one names none.
    if request.message_type == "conformance.FailureSet" {
        return ConformanceResponse {
            binary: Some(Vec::new()),
            ..ConformanceResponse::default()
        };
    }
    if request.category == UNKNOWN_KEYS_IGNORED {
        return ConformanceResponse::from_skip_reason("unknown keys are never ignored");
    }
    let name = request.message_type.strip_prefix("protobuf_test_messages.");
    let known = MESSAGE_TYPES
        .iter()
        .position(|known| Some(*known) == name)
        .map(|i| schema.method(&format!("Suite/M{i}")).expect("a method"));
    let Some(method) = known else {
        return ConformanceResponse::from_skip_reason(&format!(
            "no message {}",
            request.message_type
        ));
    };
    let is_binary = request.binary.is_some();
    let encoded = match (request.binary, request.json) {
        (Some(bytes), _) => check_binary(schema, &method, bytes),
        (None, Some(json)) => schema.encode(&method, &json).map_err(|e| e.to_string()),
        (None, None) => return ConformanceResponse::from_skip_reason("neither JSON nor binary"),
    };
    let encoded = match encoded {
        Ok(encoded) => encoded,
        Err(problem) => return ConformanceResponse::from_parse_error(problem),
    };
    if let Err(problem) = validate_response(schema, &method, &encoded) {
        return ConformanceResponse {
            runtime_error: Some(format!("a valid response is rejected: {problem}")),
            ..ConformanceResponse::default()
        };
    }
    match request.output_format {
        output_format::PROTOBUF if is_binary => {
            ConformanceResponse::from_skip_reason("binary messages are sent as they are")
        }
        output_format::PROTOBUF => ConformanceResponse {
            binary: Some(encoded),
            ..ConformanceResponse::default()
        },
        output_format::JSON => match schema.decode(&method, &encoded) {
            Ok(json) => ConformanceResponse {
                json: Some(json),
                ..ConformanceResponse::default()
            },
            Err(e) => ConformanceResponse {
                serialize_error: Some(e.to_string()),
                ..ConformanceResponse::default()
            },
        },
        _ => ConformanceResponse::from_skip_reason("neither JSON nor binary is wanted"),
    }
}

/// Checks a request that a plan gives in binary form.
fn check_binary(schema: &Schema, method: &GrpcMethod, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let message = BinaryMessage {
        source: "payload".to_owned(),
        bytes,
    };
    schema
        .check_request(method, &message)
        .map_err(|e| e.to_string())?;
    Ok(message.bytes)
}

/// Validates `bytes` as a response of `method`, as every response of a load is.
fn validate_response(schema: &Schema, method: &GrpcMethod, bytes: &[u8]) -> Result<(), String> {
    let shapes = schema.answer_shapes(method);
    let mut sink = ValidatingSink {
        validator: &mut WireValidator::default(),
        shapes: &shapes,
    };
    sink.on_piece(bytes)
        .and_then(|()| sink.on_end())
        .map_err(|e| e.to_string())
}

/// Answers the runner's requests on standard input until it ends. The answers go to descriptor 3, because the test
/// harness prints to standard output.
#[test]
#[ignore = "is started by the runner of protobuf_conformance_suite_passes"]
fn testee_answers_requests() {
    let Ok(mut output) = fs::OpenOptions::new().write(true).open("/proc/self/fd/3") else {
        return;
    };
    let schema = compile_schema();
    let mut input = std::io::stdin().lock();
    let mut length = [0; 4];
    while input.read_exact(&mut length).is_ok() {
        let mut request = vec![0; u32::from_le_bytes(length) as usize];
        input.read_exact(&mut request).expect("a request");
        let request = ConformanceRequest::decode(&request[..]).expect("a request");
        let response = answer(&schema, request).encode_to_vec();
        let length = u32::try_from(response.len()).expect("a short response");
        output.write_all(&length.to_le_bytes()).expect("a pipe");
        output.write_all(&response).expect("a pipe");
    }
}

#[test]
#[ignore = "needs the suite's runner, which tests/setup.sh peers installs"]
fn protobuf_conformance_suite_passes() {
    let runner = suite().join("run");
    assert!(
        runner.exists(),
        "no .peers/conformance/run: run tests/setup.sh peers"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let testee = folder.path().join("testee");
    let binary = std::env::current_exe().expect("this binary");
    let script = format!(
        "#!/bin/sh\nexec 3>&1 >/dev/null\nexec '{}' --exact {TESTEE_TEST} --ignored --test-threads=1\n",
        binary.display()
    );
    fs::write(&testee, script).expect("a script");
    fs::set_permissions(&testee, fs::Permissions::from_mode(0o755)).expect("a script");
    let known_failures =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/grpc/tests/known_failures.txt");
    let output = Command::new(runner)
        .args(["--enforce_recommended", "--maximum_edition", MAX_EDITION])
        .arg("--failure_list")
        .arg(known_failures)
        .arg("--output_dir")
        .arg(folder.path())
        .arg(testee)
        .output()
        .expect("the runner");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    // The runner exits with 0, too, if it ran nothing.
    assert!(text.contains("CONFORMANCE SUITE PASSED"), "{text}");
}
