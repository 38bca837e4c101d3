//! Misbehaving gRPC servers: header fields that no response may have (RFC 9113 §8.1 to §8.3).

use plimsoll_model::Outcome as O;

use super::super::script::Behaviour;
use super::{
    ANSWER_HEAD, SCORE_MESSAGE, STATUS_OK, data, end_with, head, message_with, trailers_only,
};

pub(in super::super) const FIELD_BEHAVIOURS: &[Behaviour] = &[
    Behaviour::new("h2-header-no-status", O::ProtocolError)
        .about("no :status (RFC 9113 §8.3.2)")
        .frames(|out, s| end_with(out, s, &[ANSWER_HEAD[1], STATUS_OK])),
    Behaviour::new("h2-header-late-status", O::ProtocolError)
        .about(":status after a field (RFC 9113 §8.3)")
        .frames(|out, s| end_with(out, s, &[ANSWER_HEAD[1], ANSWER_HEAD[0], STATUS_OK])),
    Behaviour::new("h2-header-status-twice", O::ProtocolError)
        .about(":status twice (RFC 9113 §8.3)")
        .frames(|out, s| {
            end_with(
                out,
                s,
                &[ANSWER_HEAD[0], ANSWER_HEAD[0], ANSWER_HEAD[1], STATUS_OK],
            )
        }),
    Behaviour::new("h2-header-status-word", O::ProtocolError)
        .about(":status of letters (RFC 9113 §8.3.2)")
        .frames(|out, s| end_with(out, s, &[(":status", "ok!"), ANSWER_HEAD[1], STATUS_OK])),
    Behaviour::new("h2-header-path", O::ProtocolError)
        .about(":path in an answer (RFC 9113 §8.3.2)")
        .frames(|out, s| {
            end_with(
                out,
                s,
                &[ANSWER_HEAD[0], (":path", "/"), ANSWER_HEAD[1], STATUS_OK],
            )
        }),
    Behaviour::new("h2-header-line-break", O::ProtocolError)
        .about("CR and LF in a field's value (RFC 9113 §8.2.1)")
        .frames(|out, s| trailers_only(out, s, &[("x", "a\r\nb: c"), STATUS_OK])),
    Behaviour::new("h2-header-control", O::ProtocolError)
        .about("a control byte in a field's value (RFC 9110 §5.5)")
        .frames(|out, s| trailers_only(out, s, &[("x", "a\x01b"), STATUS_OK])),
    Behaviour::new("h2-header-name", O::ProtocolError)
        .about("a field name with a blank (RFC 9113 §8.2.1)")
        .frames(|out, s| trailers_only(out, s, &[("a b", "c"), STATUS_OK])),
    Behaviour::new("h2-trailers-pseudo", O::ProtocolError)
        .about(":path in trailers (RFC 9113 §8.1)")
        .frames(|out, s| {
            head(out, s);
            data(out, s);
            end_with(out, s, &[(":path", "/"), STATUS_OK]);
        }),
    Behaviour::new("h2-length-short", O::ProtocolError)
        .about("more DATA than content-length (RFC 9113 §8.1.1)")
        .frames(|out, s| message_with(out, s, &[("content-length", "5")], SCORE_MESSAGE)),
    Behaviour::new("h2-length-long", O::ProtocolError)
        .about("less DATA than content-length (RFC 9113 §8.1.1)")
        .frames(|out, s| message_with(out, s, &[("content-length", "100")], SCORE_MESSAGE)),
    Behaviour::new("h2-length-no-data", O::ProtocolError)
        .about("content-length, and no DATA at all (RFC 9113 §8.1.1)")
        .frames(|out, s| trailers_only(out, s, &[("content-length", "14"), STATUS_OK])),
    Behaviour::new("h2-length-word", O::ProtocolError)
        .about("content-length of letters (RFC 9110 §8.6)")
        .frames(|out, s| message_with(out, s, &[("content-length", "many")], SCORE_MESSAGE)),
];
