//! The responses of the reference server.

use super::super::frame::{BoltCommand, BoltFrame, BoltFrameKind, codec};
use super::super::hessian::{self, HessianValue};
use super::super::sofa::{self, SofaCall};
use super::super::{Status, header};
use super::FailureShare;

const EXCEPTION_CLASS: &str = "com.alipay.remoting.rpc.exception.RpcServerException";
const STRING_CLASS: &[u8] = b"java.lang.String";

/// Appends the response to `request`. Returns true if the response is the result of the call, and false if it reports a
/// failure.
pub(super) fn write_answer(request: &BoltFrame<'_>, out: &mut Vec<u8>) -> bool {
    if request.class == STRING_CLASS && request.codec == codec::HESSIAN2 {
        write_success(request, STRING_CLASS, &[], request.content, out);
        return true;
    }
    let call = match parse_call(request) {
        Ok(call) => call,
        Err((status, text)) => {
            write_exception(request, status, &text, out);
            return false;
        }
    };
    let result = call_service(&call);
    match &result {
        Ok(value) => {
            let content = sofa::encode_success(value.clone());
            write_success(request, sofa::RESPONSE_CLASS.as_bytes(), &[], &content, out);
        }
        Err(text) => write_sofa_failure(request, text, out),
    }
    result.is_ok()
}

/// Decodes the call of a request, or returns the status and text to reject it with.
fn parse_call(request: &BoltFrame<'_>) -> Result<SofaCall, (Status, String)> {
    if request.codec != codec::HESSIAN2 {
        let codec = request.codec;
        let text = format!("codec {codec} is not supported: use 1 (Hessian 2)");
        return Err((Status::ServerDeserialException, text));
    }
    if request.class != sofa::REQUEST_CLASS.as_bytes() {
        let class = String::from_utf8_lossy(request.class);
        let text = format!("No user processor found for request: {class}");
        return Err((Status::ServerException, text));
    }
    let call = SofaCall::decode(request.content);
    call.map_err(|why| (Status::ServerDeserialException, why))
}

/// Calls one of the two services, by its simple name in any package.
fn call_service(call: &SofaCall) -> Result<HessianValue, String> {
    let interface = call.service.split(':').next().unwrap_or_default();
    let simple = interface.rsplit('.').next().unwrap_or_default();
    let argument = call.arguments.first();
    match (simple, call.method.as_str()) {
        ("HelloService", "sayHello") => {
            let name = argument.and_then(HessianValue::as_str).unwrap_or("null");
            Ok(HessianValue::String(format!("Hello, {name}")))
        }
        ("TestService", "echoStr") => Ok(argument.cloned().unwrap_or(HessianValue::Null)),
        ("HelloService" | "TestService", method) => Err(format!(
            "RPC-020100011: Cannot find invoke method: [{method}], service: [{}]",
            call.service
        )),
        _ => Err(format!(
            "RPC-020100010: RPC cannot find service: [{}]",
            call.service
        )),
    }
}

/// Appends a failure that `--fail` requests.
pub(super) fn write_requested_failure(
    request: &BoltFrame<'_>,
    share: FailureShare,
    out: &mut Vec<u8>,
) {
    let text = "failed on demand";
    match share.status {
        None => write_sofa_failure(request, text, out),
        Some(
            status @ (Status::ServerException
            | Status::ServerSerialException
            | Status::ServerDeserialException),
        ) => write_exception(request, status, text, out),
        Some(status) => write_status_response(request, status, out),
    }
}

/// Appends a response that has a status only.
pub(super) fn write_status_response(request: &BoltFrame<'_>, status: Status, out: &mut Vec<u8>) {
    let form = request.layout.without_checksum();
    BoltFrame::status_response(form, request.id, request.codec, status).write(out);
}

/// Appends a successful response in the request's layout.
fn write_success(
    request: &BoltFrame<'_>,
    class: &[u8],
    header: &[u8],
    content: &[u8],
    out: &mut Vec<u8>,
) {
    BoltFrame {
        kind: BoltFrameKind::Response { status: 0 },
        command: BoltCommand::RpcResponse,
        class,
        header,
        content,
        ..*request
    }
    .write(out);
}

/// Appends a SOFARPC failure: the Bolt status is a success, and a header entry marks the failure.
fn write_sofa_failure(request: &BoltFrame<'_>, text: &str, out: &mut Vec<u8>) {
    let mut map = Vec::new();
    header::write(&mut map, Some(header::RESPONSE_ERROR_KEY), Some(b"true"));
    let content = sofa::encode_failure(text);
    write_success(
        request,
        sofa::RESPONSE_CLASS.as_bytes(),
        &map,
        &content,
        out,
    );
}

/// Appends a Bolt failure with an exception, which Java clients show.
fn write_exception(request: &BoltFrame<'_>, status: Status, text: &str, out: &mut Vec<u8>) {
    let list = |class: &str| HessianValue::List {
        class: Some(class.to_owned()),
        items: Vec::new(),
    };
    let fields = [
        "detailMessage",
        "cause",
        "stackTrace",
        "suppressedExceptions",
    ];
    let content = hessian::encode(&HessianValue::Object {
        class: sofa::class_definition(EXCEPTION_CLASS, &fields),
        fields: vec![
            text.into(),
            // In Java, an exception without a cause refers to itself.
            HessianValue::Ref(0),
            list("[java.lang.StackTraceElement"),
            list("java.util.Collections$EmptyList"),
        ],
    });
    BoltFrame {
        layout: request.layout.without_checksum(),
        kind: BoltFrameKind::Response {
            status: status.number(),
        },
        command: BoltCommand::RpcResponse,
        class: EXCEPTION_CLASS.as_bytes(),
        header: &[],
        content: &content,
        codec: codec::HESSIAN2,
        ..*request
    }
    .write(out);
}
