//! Writes the heads of messages (RFC 9112 §3 to §5).

/// Appends a request's head.
pub fn append_request_head(out: &mut Vec<u8>, method: &str, target: &str, fields: &[(&str, &str)]) {
    append_head(out, &[method, " ", target, " HTTP/1.1\r\n"], fields);
}

/// Appends a response's head.
pub fn append_response_head(out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]) {
    let line = [
        "HTTP/1.1 ",
        &status.to_string(),
        " ",
        reason_phrase(status),
        "\r\n",
    ];
    append_head(out, &line, fields);
}

fn append_head(out: &mut Vec<u8>, line: &[&str], fields: &[(&str, &str)]) {
    for part in line {
        out.extend_from_slice(part.as_bytes());
    }
    for (name, value) in fields {
        debug_assert!(!value.contains(['\r', '\n', '\0']), "{name}: {value:?}");
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Returns the reason phrase of a status that our servers use (RFC 9110 §15).
fn reason_phrase(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        425 => "Too Early",
        426 => "Upgrade Required",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    }
}
