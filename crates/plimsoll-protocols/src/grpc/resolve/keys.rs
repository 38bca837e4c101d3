//! Checks the keys of `[call.grpc]` that do not depend on the method.

use plimsoll_model::formats::units::{ByteSize, Period};
use plimsoll_model::spec::{
    CallSection, Problems, ResolveContext, Spec, is_valid_field_value, is_visible_ascii,
};

use crate::grpc::binary_messages::read_binary_messages;
use crate::grpc::call::{MessageCompression, PlanMessages};
use crate::grpc::section::GrpcSpec;
use crate::http2::resolve_max_head;
use crate::shared::alternatives::report_conflict;

/// The default maximum size of a message, the same as in other gRPC clients.
const DEFAULT_MAX_MESSAGE_SIZE: ByteSize = ByteSize(4 << 20);

/// The limits of messages and metadata, and the compression of messages.
pub(super) struct MessageLimits {
    /// The maximum size of a message, in bytes.
    pub(super) max_message: usize,
    /// The maximum size of metadata, in bytes.
    pub(super) max_head: u32,
    pub(super) compression: Option<MessageCompression>,
}

/// Checks that the plan names only one source that describes the method.
fn check_one_description(problems: &mut Problems, call: &GrpcSpec) {
    let schemas = [
        ("proto", call.proto.is_some()),
        ("descriptor_set", call.descriptor_set.is_some()),
    ];
    report_conflict(problems, "call.grpc", &schemas);
    if call.import_path.is_some() && call.proto.is_none() {
        problems.add("call.grpc.import_path", "used only with call.grpc.proto");
    }
}

/// Checks that the planned duration of streams is shorter than their deadline.
pub(super) fn check_stream_duration(problems: &mut Problems, spec: &Spec, call: &GrpcSpec) {
    let lasts = call.stream_duration.map(|period| period.0);
    if let (Some(lasts), Some(deadline)) = (lasts, spec.deadline())
        && !lasts.is_zero()
        && deadline <= lasts
    {
        problems.add(
            "call.grpc.stream_duration",
            format!(
                "streams of {} would exceed their deadline: give a longer deadline, or \"none\"",
                Period(lasts)
            ),
        );
    }
}

/// Checks the keys of a call that depend neither on its method nor on rows.
pub(super) fn check_keys(problems: &mut Problems, call: &GrpcSpec) -> MessageLimits {
    check_one_description(problems, call);
    let max_message = call.max_message.unwrap_or(DEFAULT_MAX_MESSAGE_SIZE).0;
    let max_message = if (1..=1 << 31).contains(&max_message) {
        max_message as usize
    } else {
        problems.add("call.grpc.max_message", "out of range: use 1B to 2GiB");
        0
    };
    let max_head = resolve_max_head(problems, GrpcSpec::SCHEMES.section, call.max_head);
    let expected = call.expect_message.as_ref();
    problems.reject_template_fields(
        "call.grpc.expect_message",
        expected.map(|json| json.0.as_str()),
    );
    problems.reject_template_fields("call.grpc.authority", call.authority.as_deref());
    problems.reject_template_fields("call.grpc.user_agent", call.user_agent.as_deref());
    if let Some(authority) = &call.authority
        && !is_visible_ascii(authority)
    {
        problems.add(
            "call.grpc.authority",
            format!("`{authority}` is not a host or host:port"),
        );
    }
    if let Some(agent) = &call.user_agent
        && !is_valid_field_value(agent)
    {
        problems.add(
            "call.grpc.user_agent",
            "not a field value: use printable ASCII without leading or trailing spaces",
        );
    }
    let compression = match call.compression.as_deref() {
        None | Some("none") => None,
        Some("gzip") => Some(MessageCompression::Gzip),
        Some(other) => {
            problems.add(
                "call.grpc.compression",
                format!("`{other}` is unknown: use \"gzip\" or \"none\""),
            );
            None
        }
    };
    MessageLimits {
        max_message,
        max_head,
        compression,
    }
}

/// Returns the messages as the plan gives them, or `None` after adding problems to `problems`.
pub(super) fn read_message(
    problems: &mut Problems,
    call: &GrpcSpec,
    surroundings: &dyn ResolveContext,
) -> Option<PlanMessages> {
    let given = [
        ("message", call.message.is_some()),
        ("message_file", call.message_file.is_some()),
        ("message_binary", call.message_binary.is_some()),
    ];
    if report_conflict(problems, "call.grpc", &given) {
        return None;
    }
    if let Some(message) = &call.message {
        return Some(PlanMessages::Json(message.0.clone()));
    }
    if let Some(path) = &call.message_file {
        let text = surroundings
            .read(path)
            .map_err(|e| format!("can't read {}: {e}", path.display()));
        let text = problems.ok_or_report("call.grpc.message_file", text)?;
        return Some(PlanMessages::Json(text));
    }
    match &call.message_binary {
        Some(spec) => read_binary_messages(problems, spec, surroundings).map(PlanMessages::Binary),
        None => Some(PlanMessages::EmptyMessage),
    }
}
