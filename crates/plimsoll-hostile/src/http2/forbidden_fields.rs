//! Misbehaving gRPC servers: header fields that no response may have (RFC 9113 §8.1 to §8.3).

use plimsoll_model::Outcome as O;

use super::super::script::HostileBehaviour;
use super::{
    ANSWER_HEAD_FIELDS, SCORE_MESSAGE, STATUS_OK_FIELD, write_answer_head, write_end_stream,
    write_message_data, write_message_with_fields, write_trailers_only,
};

pub(in super::super) const FIELD_BEHAVIOURS: &[HostileBehaviour] = &[
    HostileBehaviour::new("h2-header-no-status", O::ProtocolError)
        .with_description("no :status (RFC 9113 §8.3.2)")
        .answers_with_frames(|out, s| {
            write_end_stream(out, s, &[ANSWER_HEAD_FIELDS[1], STATUS_OK_FIELD])
        }),
    HostileBehaviour::new("h2-header-late-status", O::ProtocolError)
        .with_description(":status after a field (RFC 9113 §8.3)")
        .answers_with_frames(|out, s| {
            write_end_stream(
                out,
                s,
                &[
                    ANSWER_HEAD_FIELDS[1],
                    ANSWER_HEAD_FIELDS[0],
                    STATUS_OK_FIELD,
                ],
            )
        }),
    HostileBehaviour::new("h2-header-status-twice", O::ProtocolError)
        .with_description(":status twice (RFC 9113 §8.3)")
        .answers_with_frames(|out, s| {
            write_end_stream(
                out,
                s,
                &[
                    ANSWER_HEAD_FIELDS[0],
                    ANSWER_HEAD_FIELDS[0],
                    ANSWER_HEAD_FIELDS[1],
                    STATUS_OK_FIELD,
                ],
            )
        }),
    HostileBehaviour::new("h2-header-status-word", O::ProtocolError)
        .with_description(":status of letters (RFC 9113 §8.3.2)")
        .answers_with_frames(|out, s| {
            write_end_stream(
                out,
                s,
                &[(":status", "ok!"), ANSWER_HEAD_FIELDS[1], STATUS_OK_FIELD],
            )
        }),
    HostileBehaviour::new("h2-header-path", O::ProtocolError)
        .with_description(":path in an answer (RFC 9113 §8.3.2)")
        .answers_with_frames(|out, s| {
            write_end_stream(
                out,
                s,
                &[
                    ANSWER_HEAD_FIELDS[0],
                    (":path", "/"),
                    ANSWER_HEAD_FIELDS[1],
                    STATUS_OK_FIELD,
                ],
            )
        }),
    HostileBehaviour::new("h2-header-line-break", O::ProtocolError)
        .with_description("CR and LF in a field's value (RFC 9113 §8.2.1)")
        .answers_with_frames(|out, s| {
            write_trailers_only(out, s, &[("x", "a\r\nb: c"), STATUS_OK_FIELD])
        }),
    HostileBehaviour::new("h2-header-control", O::ProtocolError)
        .with_description("a control byte in a field's value (RFC 9110 §5.5)")
        .answers_with_frames(|out, s| {
            write_trailers_only(out, s, &[("x", "a\x01b"), STATUS_OK_FIELD])
        }),
    HostileBehaviour::new("h2-header-name", O::ProtocolError)
        .with_description("a field name with a blank (RFC 9113 §8.2.1)")
        .answers_with_frames(|out, s| {
            write_trailers_only(out, s, &[("a b", "c"), STATUS_OK_FIELD])
        }),
    HostileBehaviour::new("h2-trailers-pseudo", O::ProtocolError)
        .with_description(":path in trailers (RFC 9113 §8.1)")
        .answers_with_frames(|out, s| {
            write_answer_head(out, s);
            write_message_data(out, s);
            write_end_stream(out, s, &[(":path", "/"), STATUS_OK_FIELD]);
        }),
    HostileBehaviour::new("h2-length-short", O::ProtocolError)
        .with_description("more DATA than content-length (RFC 9113 §8.1.1)")
        .answers_with_frames(|out, s| {
            write_message_with_fields(out, s, &[("content-length", "5")], SCORE_MESSAGE)
        }),
    HostileBehaviour::new("h2-length-long", O::ProtocolError)
        .with_description("less DATA than content-length (RFC 9113 §8.1.1)")
        .answers_with_frames(|out, s| {
            write_message_with_fields(out, s, &[("content-length", "100")], SCORE_MESSAGE)
        }),
    HostileBehaviour::new("h2-length-no-data", O::ProtocolError)
        .with_description("content-length, and no DATA at all (RFC 9113 §8.1.1)")
        .answers_with_frames(|out, s| {
            write_trailers_only(out, s, &[("content-length", "14"), STATUS_OK_FIELD])
        }),
    HostileBehaviour::new("h2-length-word", O::ProtocolError)
        .with_description("content-length of letters (RFC 9110 §8.6)")
        .answers_with_frames(|out, s| {
            write_message_with_fields(out, s, &[("content-length", "many")], SCORE_MESSAGE)
        }),
];
