//! Translates command lines of [curl](https://curl.se): the request is sent once, unless the line contains Plimsoll's
//! load flags.

use super::addresses::{override_addresses, override_with_unix_socket};
use super::{
    ANY_ADDRESS_HINT, NO_FILE_HINT, NO_HTTP3_HINT, add_alpn, add_basic_auth, add_proxy,
    add_redirects, add_suites,
};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const BASIC_ONLY_HINT: &str =
    "basic authentication and bearer tokens are header fields; others need answers of the server";
const OLD_TLS_HINT: &str = "TLS 1.2 and 1.3 are offered";
const NO_BODIES_HINT: &str = "answers are measured, not printed; --expect-body TEXT checks them, and --requests records their statuses";
const NO_WRITE_OUT_HINT: &str = "the report has the times, and counts each status that is no success; --json prints all figures";
const QUIET_HINT: &str = "the report is printed; --quiet leaves out the notices";
const NO_RETRIES_HINT: &str = "a call that fails is counted, and not made again";

pub(super) static TOOL: LineTool = LineTool {
    names: &["curl"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["X", "request"], Text, Deferred),
        value(&["d", "data", "data-ascii"], Text, Deferred),
        value(&["data-raw"], Text, Deferred),
        value(&["data-binary"], Text, Deferred),
        value(&["data-urlencode"], Text, Deferred),
        value(&["json"], Text, Deferred),
        switch(&["G", "get"], Deferred),
        value(&["url-query"], Text, Deferred),
        switch(&["I", "head"], Words(&["-X", "HEAD"])),
        value(&["T", "upload-file"], Text, Deferred),
        value(&["F", "form"], Text, Deferred),
        value(&["form-string"], Text, Deferred),
        value(&["H", "header"], Text, Deferred),
        value(&["A", "user-agent"], Text, Header("user-agent")),
        value(&["e", "referer"], Text, Header("referer")),
        value(&["b", "cookie"], Text, Deferred),
        value(&["u", "user"], Text, Deferred),
        switch(&["basic"], Ignored),
        value(
            &["oauth2-bearer"],
            Text,
            Words(&["-H", "authorization: Bearer {}"]),
        ),
        switch(&["digest"], Missing(BASIC_ONLY_HINT)),
        switch(&["ntlm"], Missing(BASIC_ONLY_HINT)),
        switch(&["negotiate"], Missing(BASIC_ONLY_HINT)),
        switch(&["anyauth"], Missing(BASIC_ONLY_HINT)),
        value(
            &["r", "range"],
            Text,
            Words(&["-H", "range: bytes={}", "--expect", "206"]),
        ),
        switch(&["L", "location"], Deferred),
        value(&["max-redirs"], Number, Deferred),
        switch(&["compressed"], OurFlag("--compressed", "")),
        value(&["url"], Text, Deferred),
        value(&["x", "proxy"], Text, Deferred),
        value(&["noproxy"], Text, Dropped("--proxy is for the one target")),
        value(
            &["U", "proxy-user"],
            Text,
            Missing("--proxy 'http://$NAME@HOST:PORT' takes USER:PASSWORD from a variable"),
        ),
        value(&["resolve"], Text, OurFlag("--resolve", "")),
        value(&["connect-to"], Text, Deferred),
        value(&["interface"], Text, OurFlag("--source", "")),
        value(&["unix-socket"], Text, Deferred),
        value(&["m", "max-time"], Decimal, OurFlag("--deadline", "s")),
        value(
            &["connect-timeout"],
            Decimal,
            OurFlag("--connect-timeout", "s"),
        ),
        value(&["retry"], Number, Dropped(NO_RETRIES_HINT)),
        value(&["retry-delay"], Number, Dropped(NO_RETRIES_HINT)),
        value(&["retry-max-time"], Number, Dropped(NO_RETRIES_HINT)),
        switch(&["retry-connrefused"], Dropped(NO_RETRIES_HINT)),
        switch(&["retry-all-errors"], Dropped(NO_RETRIES_HINT)),
        switch(&["http1.1"], Words(&["--http-version", "1.1"])),
        switch(&["http2"], Words(&["--http-version", "auto"])),
        switch(&["http2-prior-knowledge"], Words(&["--http-version", "2"])),
        switch(
            &["0", "http1.0"],
            Missing("only HTTP/1.1 and HTTP/2 are supported"),
        ),
        switch(&["http3", "http3-only"], Missing(NO_HTTP3_HINT)),
        switch(&["k", "insecure"], OurFlag("--insecure", "")),
        value(&["cacert"], Text, OurFlag("--ca", "")),
        value(&["capath"], Text, Missing("--ca takes a file")),
        value(&["crlfile"], Text, OurFlag("--crl", "")),
        value(&["E", "cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        switch(&["tlsv1.2"], Ignored),
        switch(&["tlsv1.3"], Words(&["--tls-version", "1.3"])),
        switch(&["1", "tlsv1", "tlsv1.0"], Dropped(OLD_TLS_HINT)),
        switch(&["tlsv1.1"], Dropped(OLD_TLS_HINT)),
        value(&["tls-max"], Text, Deferred),
        value(&["ciphers"], Text, Deferred),
        value(&["tls13-ciphers"], Text, Deferred),
        value(&["curves"], Text, Deferred),
        switch(
            &["haproxy-protocol"],
            Missing("the PROXY protocol is sent by relays only"),
        ),
        switch(&["g", "globoff"], Ignored),
        switch(&["path-as-is"], Ignored),
        switch(&["no-keepalive"], Ignored),
        switch(&["tcp-nodelay"], Ignored),
        switch(&["4", "ipv4"], Dropped(ANY_ADDRESS_HINT)),
        switch(&["6", "ipv6"], Dropped(ANY_ADDRESS_HINT)),
        value(&["o", "output"], Text, Deferred),
        switch(&["O", "remote-name"], Dropped(NO_BODIES_HINT)),
        value(&["w", "write-out"], Text, Dropped(NO_WRITE_OUT_HINT)),
        value(&["trace-ascii"], Text, Dropped(NO_FILE_HINT)),
        value(&["stderr"], Text, Dropped(NO_FILE_HINT)),
        value(
            &["c", "cookie-jar"],
            Text,
            Dropped("cookies of answers are not kept"),
        ),
        value(&["D", "dump-header"], Text, Dropped(NO_FILE_HINT)),
        switch(&["s", "silent"], Dropped(QUIET_HINT)),
        switch(&["S", "show-error"], Dropped(QUIET_HINT)),
        switch(&["f", "fail"], Ignored),
        switch(&["fail-with-body"], Ignored),
        switch(&["v", "verbose"], Dropped(NO_BODIES_HINT)),
        switch(&["i", "include"], Dropped(NO_BODIES_HINT)),
        switch(&["N", "no-buffer"], Ignored),
        switch(&["#", "progress-bar"], Ignored),
        switch(&["no-progress-meter"], Ignored),
        switch(&["q", "disable"], Ignored),
        switch(&["Z", "parallel"], Ignored),
        // These are Plimsoll's flags, which define a load.
        value(&["clients"], Number, OurFlag("--clients", "")),
        value(&["calls"], Number, OurFlag("--calls", "")),
        value(&["rate"], Text, OurFlag("--rate", "/s")),
        value(&["duration"], Text, OurFlag("--duration", "s")),
        value(&["connections"], Number, OurFlag("--connections", "")),
        value(&["objective"], Text, OurFlag("--objective", "")),
        value(&["out"], Text, OurFlag("--out", "")),
        switch(&["dry-run"], OurFlag("--dry-run", "")),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    add_method_and_body(line);
    add_fields(line);
    add_basic_auth(line, "u");
    if line.is_set("L") {
        add_redirects(line, line.number("max-redirs", 10));
    }
    add_proxy(line, "x");
    match line.value("tls-max") {
        Some("1.2") => line.add("--tls-version", "1.2"),
        Some("1.0" | "1.1") => line.add_unsupported("--tls-max", OLD_TLS_HINT),
        _ => {}
    }
    if !line.is_set("key")
        && let Some(cert) = line.value("E").map(str::to_owned)
    {
        // A certificate file may also contain the key.
        line.add("--key", cert);
    }
    add_suites(line, &["ciphers", "tls13-ciphers"]);
    for value in line
        .values("curves")
        .iter()
        .flat_map(|list| list.split(':'))
    {
        line.add("--group", value);
    }
    drop_output_flags(line);
    let is_load = ["clients", "calls", "rate", "duration"]
        .iter()
        .any(|name| line.is_set(name));
    if !is_load {
        line.our_flags
            .extend(["--clients", "1", "--calls", "1"].map(str::to_owned));
    }
    let urls = line.values("url");
    line.words.extend(urls);
    line.set_target_from_word("http")?;
    add_query(line);
    let versions = ["http1.1", "http2", "http2-prior-knowledge", "0", "http3"];
    if !versions.iter().any(|name| line.is_set(name)) {
        add_alpn(line);
    }
    override_addresses(line, "connect-to");
    override_with_unix_socket(line, "unix-socket");
    Ok(())
}

/// Names the output files that are not written. A file that only discards the answer is no loss.
fn drop_output_flags(line: &mut LineBuilder) {
    if line.values("o").iter().any(|file| file != "/dev/null") {
        line.add_dropped("-o", NO_BODIES_HINT);
    }
}

/// The flags whose values are joined to the body. Values are joined in the order of this list, not of the line.
const DATA_FLAGS: [&str; 3] = ["d", "data-raw", "data-binary"];

/// Returns the values of all data flags, which are joined to the body.
fn data_values(line: &LineBuilder) -> Vec<String> {
    let plain = DATA_FLAGS.iter().flat_map(|name| line.values(name));
    let encoded = line.values("data-urlencode");
    plain
        .chain(encoded.iter().map(|pair| encode_pair(pair)))
        .collect()
}

/// Percent-encodes the value of `name=value`.
fn encode_pair(pair: &str) -> String {
    match pair.split_once('=') {
        Some(("", value)) => percent_encode(value),
        Some((name, value)) => format!("{name}={}", percent_encode(value)),
        None => percent_encode(pair),
    }
}

/// Percent-encodes all but the unreserved characters of RFC 3986 §2.3; as in curl, a space becomes +.
fn percent_encode(text: &str) -> String {
    let encoded = text.bytes().map(|byte| {
        if byte == b' ' {
            "+".to_owned()
        } else if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    encoded.collect()
}

fn add_method_and_body(line: &mut LineBuilder) {
    let file = line.value("T").map(str::to_owned);
    let put = file.as_ref().map(|_| "PUT".to_owned());
    if let Some(method) = line.value("X").map(str::to_owned).or(put) {
        line.add("-X", method);
    }
    if let Some(file) = file {
        line.add("-d", format_args!("@{file}"));
        return;
    }
    report_file_data(line);
    let fields = line.values("H");
    let has = |name: &str| {
        let mut names = fields
            .iter()
            .filter_map(|field| Some(field.split_once(':')?.0));
        names.any(|known| known.eq_ignore_ascii_case(name))
    };
    if let Some(body) = line.value("json").map(str::to_owned) {
        line.add("-d", body);
        for name in ["content-type", "accept"].iter().filter(|name| !has(name)) {
            line.add_field("-H", name, "application/json");
        }
        return;
    }
    add_form(line);
    let data = data_values(line);
    if data.is_empty() || line.is_set("G") {
        return;
    }
    if data.len() > 1 && data.iter().any(|part| part.starts_with('@')) {
        line.add_unsupported("-d @FILE", "a body is either one file or text");
    }
    line.add("-d", data.join("&"));
    if !has("content-type") {
        line.add_field("-H", "content-type", "application/x-www-form-urlencoded");
    }
}

/// The content types that curl chooses by file name extension.
const FILE_CONTENT_TYPES: [(&str, &str); 10] = [
    (".gif", "image/gif"),
    (".jpg", "image/jpeg"),
    (".jpeg", "image/jpeg"),
    (".png", "image/png"),
    (".svg", "image/svg+xml"),
    (".txt", "text/plain"),
    (".htm", "text/html"),
    (".html", "text/html"),
    (".pdf", "application/pdf"),
    (".xml", "application/xml"),
];

/// Adds the parts of a multipart form.
fn add_form(line: &mut LineBuilder) {
    for part in line.values("F") {
        let (_, value) = part.split_once('=').unwrap_or_default();
        if value.starts_with('<') {
            line.add_unsupported(
                "-F NAME=<FILE",
                "a value is text, and a file is sent as one: @FILE",
            );
        } else if value.starts_with("@-") {
            line.add_unsupported("-F NAME=@-", "a part is no stdin: name a file");
        } else if value.starts_with('"')
            || value.contains(";headers=")
            || value.contains(";encoder=")
        {
            line.add_unsupported("-F", "a part has ;type= and ;filename=, and no quotes");
        }
        let known = FILE_CONTENT_TYPES
            .iter()
            .find(|(end, _)| value.ends_with(end));
        let kind = known.filter(|_| value.starts_with('@') && !value.contains(";type="));
        let kind = kind.map_or_else(String::new, |(_, kind)| format!(";type={kind}"));
        line.add("-F", format_args!("{part}{kind}"));
    }
    for part in line.values("form-string") {
        let (_, value) = part.split_once('=').unwrap_or_default();
        if value.starts_with('@') || value.contains(";type=") || value.contains(";filename=") {
            line.add_unsupported(
                "--form-string",
                "a part that looks like a file is written in a plan",
            );
        }
        line.add("-F", part);
    }
}

/// Reports data that curl would read as a file's name and Plimsoll as text, or vice versa.
fn report_file_data(line: &mut LineBuilder) {
    let has_at = |text: &String| text.starts_with('@');
    if line.values("data-raw").iter().any(has_at) {
        line.add_unsupported(
            "--data-raw @…",
            "a body that begins with @ is the name of a file here: put the text into a file",
        );
    }
    let is_file = |text: &String| !text.contains('=') && text.contains('@');
    if line.values("data-urlencode").iter().any(is_file) {
        line.add_unsupported("--data-urlencode @FILE", "files are not URL-encoded");
    }
    let plain = ["d", "data-binary"];
    if line.is_set("G")
        && plain
            .iter()
            .any(|name| line.values(name).iter().any(has_at))
    {
        line.add_unsupported("-G -d @FILE", "a query cannot be read from a file");
    }
}

fn add_fields(line: &mut LineBuilder) {
    for field in line.values("H") {
        match field.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("host") => {
                line.add("--host", value.trim());
            }
            Some((_, value)) if !value.trim().is_empty() => line.add("-H", field),
            _ => line.add_unsupported(format!("-H '{field}'"), "a field is `name: value`"),
        }
    }
    let cookies = line.values("b");
    if cookies.iter().any(|cookie| !cookie.contains('=')) {
        line.add_unsupported("-b", "a cookie is `name=value`; no file of cookies is read");
    } else if !cookies.is_empty() {
        line.add_field("-H", "cookie", &cookies.join("; "));
    }
}

/// Adds the values of `--url-query`, and with `-G` the data, to the query of the target.
fn add_query(line: &mut LineBuilder) {
    let queries = line.values("url-query");
    let queries = queries.iter().map(|pair| match pair.strip_prefix('+') {
        Some(encoded) => encoded.to_owned(),
        None => encode_pair(pair),
    });
    let mut parts: Vec<String> = queries.collect();
    if line.is_set("G") {
        parts.extend(data_values(line));
    }
    if let Some(url) = line.target.as_mut().filter(|_| !parts.is_empty()) {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str(&parts.join("&"));
    }
}
