//! Explains unknown flags that are flags of other tools, and suggests Plimsoll's flag with the same meaning.
//!
//! clap suggests a flag with similar spelling (`--cert` for `--cacert`); the table in this module suggests the flag
//! with the same meaning, and is used only in errors. A name that has the same meaning in all other tools can instead
//! be an alias of Plimsoll's flag, where the flag is defined. [`crate::command_line::arguments`] calls this module.
//!
//! This file is long because it is a table of other tools' flags.

/// Other tools' names of a flag, without dashes, and Plimsoll's counterparts. The first counterpart that the current
/// command has is suggested. A placeholder such as `{N}` is replaced by the typed value, or shown without braces if
/// there is none.
type FlagSynonym = (&'static [&'static str], &'static [&'static str]);

/// Synonyms by subject: the load, the request, links, results.
const SYNONYMS: &[FlagSynonym] = &[
    // Numbers of clients, calls, connections and threads.
    (
        &[
            "vus",
            "u",
            "concurrency",
            "users",
            "num-users",
            "virtual-users",
            "workers-per-client",
            "parallel",
            "max-concurrency",
            "num-clients",
            "no-of-workers",
        ],
        &["--clients {N}"],
    ),
    (
        &[
            "iterations",
            "i",
            "num-requests",
            "request-count",
            "num-prompts",
            "number",
            "amount",
            "max-requests",
            "total-requests",
            "num-calls",
            "num",
        ],
        &["--calls {N}"],
    ),
    (
        &["conns", "num-connections", "max-connections", "pool-size"],
        &["--connections {N}"],
    ),
    (&["threads", "t", "cpus", "num-threads"], &["--workers {N}"]),
    // Rate, duration and shape of the load.
    (
        &[
            "R",
            "r",
            "q",
            "qps",
            "rps",
            "tps",
            "throughput",
            "request-rate",
            "requests-per-second",
            "query-per-second",
            "arrival-rate",
            "target-rate",
            "req-rate",
            "load",
        ],
        &["--rate {N}/s"],
    ),
    (
        &[
            "time",
            "D",
            "benchmark-duration",
            "run-time",
            "runtime",
            "test-time",
            "time-limit",
            "max-duration",
            "seconds",
            "for",
            "test-duration",
            "length",
        ],
        &["--duration {TIME}"],
    ),
    (
        &[
            "warm-up-time",
            "warm-up",
            "warmup-time",
            "warmup-duration",
            "w",
        ],
        &["--warmup {TIME}"],
    ),
    // The value of these flags is a number of calls, which can't be converted to a time.
    (&["skip-first", "skipFirst"], &["--warmup 5s"]),
    (
        &[
            "stage",
            "stages",
            "load-schedule",
            "load-step",
            "ramp",
            "step-load",
        ],
        &["--step 10s:100/s"],
    ),
    (
        &["burst", "burst-rate", "burst-delay", "burstiness"],
        &["--arrivals gamma=0.1"],
    ),
    (
        &["poisson", "exponential", "jitter"],
        &["--arrivals poisson"],
    ),
    (
        &["arrival-pattern", "request-rate-mode", "distribution"],
        &["--arrivals {SPACING}"],
    ),
    (
        &[
            "sleep",
            "think-time",
            "think_time",
            "wait-time",
            "pause",
            "pacing",
            "delay-between-calls",
            "delay-between-requests",
        ],
        &["--think {TIME}"],
    ),
    (
        &["max-inflight", "inflight", "max-pending", "limit"],
        &["--max-in-flight {N}"],
    ),
    (
        &["async", "latency-correction", "open-loop"],
        &["--rate 100/s"],
    ),
    (
        &["trace-file", "mooncake-trace", "access-log"],
        &["--replay {FILE}"],
    ),
    // Timeouts, objectives and expected answers.
    (
        &[
            "timeout",
            "max-time",
            "request-timeout",
            "call-timeout",
            "response-timeout",
            "rpc-timeout",
            "m",
            "t",
        ],
        &["--deadline {TIME}"],
    ),
    (
        &["dial-timeout", "connection-timeout"],
        &["--connect-timeout {TIME}"],
    ),
    (
        &["abort-on-fail", "abortOnFail", "early-stop"],
        &["--abort-after 5s"],
    ),
    (
        &["expect-status", "status", "status-code", "ok-status"],
        &["--expect {STATUS}"],
    ),
    (
        &["expect-text", "expect-string", "contains"],
        &["--expect-body {TEXT}"],
    ),
    // The request.
    (&["request", "m", "http-method", "verb"], &["-X {VERB}"]),
    (&["call", "rpc", "procedure", "service"], &["-m {METHOD}"]),
    (
        &[
            "H",
            "header",
            "headers",
            "rpc-header",
            "add-header",
            "custom-header",
        ],
        &["-H '{NAME: VALUE}'", "--metadata '{NAME: VALUE}'"],
    ),
    (
        &["metadata", "m"],
        &["--metadata '{NAME: VALUE}'", "-H '{NAME: VALUE}'"],
    ),
    (
        &[
            "u",
            "user",
            "a",
            "auth",
            "basic-auth",
            "basic",
            "userpass",
            "username",
            "password",
        ],
        &[
            "-u {USER:PASSWORD}",
            "-H 'authorization: $AUTH'",
            "--metadata 'authorization: $AUTH'",
        ],
    ),
    (
        &["T", "content-type", "media-type", "mime"],
        &["-H 'content-type: {TYPE}'"],
    ),
    (&["A", "accept"], &["-H 'accept: {TYPE}'"]),
    (
        &["user-agent", "U", "A"],
        &["--user-agent {TEXT}", "-H 'user-agent: {TEXT}'"],
    ),
    (&["b", "cookie", "cookies", "C"], &["-H 'cookie: {COOKIE}'"]),
    (&["e", "referer", "referrer"], &["-H 'referer: {URL}'"]),
    (
        &[
            "b",
            "body",
            "payload",
            "data-raw",
            "data-ascii",
            "json-body",
            "message",
            "post-data",
        ],
        &["-d {BODY}"],
    ),
    (
        &[
            "D",
            "data-file",
            "body-file",
            "f",
            "file",
            "input",
            "p",
            "postfile",
            "input-file",
        ],
        &["-d @{FILE}", "--rows {FILE}"],
    ),
    (
        &["data-binary", "binary-file", "B", "protobuf"],
        &["--data-binary @{FILE}", "-d @{FILE}"],
    ),
    (
        &["form", "F", "multipart", "form-data"],
        &["-F {NAME=VALUE}", "-d {BODY}"],
    ),
    (
        &[
            "follow",
            "follow-redirects",
            "max-redirects",
            "max-redirs",
            "redirect",
        ],
        &["-L"],
    ),
    (
        &[
            "csv",
            "params",
            "dataset",
            "dataset-path",
            "data-source",
            "feeder",
            "targets",
            "urls",
        ],
        &["--rows {FILE}"],
    ),
    (&["script", "lua"], &["--rows {FILE}"]),
    (
        &["protoset", "descriptor", "descriptors"],
        &["--descriptor-set {FILE}"],
    ),
    (
        &[
            "protoset-path",
            "I",
            "import-paths",
            "proto-path",
            "include",
        ],
        &["--import-path {DIR}"],
    ),
    (
        &["reflect", "use-reflection", "server-reflection"],
        &["--reflection"],
    ),
    (
        &["enable-compression", "gzip", "compress"],
        &["--compression gzip", "--compressed"],
    ),
    (
        &["authority"],
        &["--authority {AUTHORITY}", "--host {HOST}"],
    ),
    (
        &["vhost", "host-header", "virtual-host"],
        &["--host {HOST}", "--authority {AUTHORITY}"],
    ),
    (
        &[
            "h2",
            "http2",
            "h2c",
            "http2-prior-knowledge",
            "http-2",
            "use-http2",
        ],
        &["--http-version 2"],
    ),
    (
        &["h1", "http1", "http1.1", "force-http1", "http-1.1"],
        &["--http-version 1.1"],
    ),
    (
        &["alpn", "no-tls-proto", "alpn-list"],
        &["--http-version auto"],
    ),
    (&["sse", "stream-response", "streaming"], &["--stream sse"]),
    (&["stream-interval"], &["--pace {TIME}"]),
    (&["stream-call-count"], &["--messages {N}"]),
    (&["stream-call-duration"], &["--stream-duration {TIME}"]),
    (
        &["max-msg-sz", "max-recv-message-size", "max-message-size"],
        &["--max-message {SIZE}"],
    ),
    (&["max-body-size", "max-filesize"], &["--max-body {SIZE}"]),
    // A language model.
    (
        &["model-name", "model-names", "served-model-name"],
        &["--model {NAME}"],
    ),
    (
        &[
            "isl",
            "input-len",
            "random-input-len",
            "synthetic-input-tokens-mean",
            "input-tokens",
        ],
        &["--prompt-tokens {N}"],
    ),
    (
        &[
            "osl",
            "output-len",
            "random-output-len",
            "output-tokens-mean",
            "max-output-tokens",
            "output-tokens",
        ],
        &["--max-tokens {N}"],
    ),
    (
        &["extra-inputs", "extra-body", "extra-request-body"],
        &["--extra {JSON}"],
    ),
    (&["endpoint-type", "backend"], &["--api {chat}"]),
    (&["system-prompt"], &["--system {TEXT}"]),
    (
        &["num-turns", "session-turns-mean", "conversation-turns"],
        &["--turns {N}"],
    ),
    // Connections and their security.
    (
        &[
            "skipTLS",
            "allow-insecure",
            "trust-all",
            "no-tls-verify",
            "skip-cert-verify",
            "ignore-ssl-errors",
            "skip-tls",
            "insecure-skip-tls-verify",
            "no-verify",
            "no-check-certificate",
            "tls-skip-verify",
            "insecure-skip-verify",
            "skip-verify",
        ],
        &["--insecure"],
    ),
    (
        &[
            "cacert",
            "CAfile",
            "cafile",
            "ca-bundle",
            "cabundle",
            "ca-file",
            "root-certs",
            "root-ca",
            "ca-cert",
            "tls-ca",
            "truststore",
            "capath",
        ],
        &["--ca {FILE}"],
    ),
    (
        &["E", "client-cert", "certificate", "cert-file", "tls-cert"],
        &["--cert {FILE}"],
    ),
    (
        &[
            "private-key",
            "client-key",
            "key-file",
            "tls-key",
            "keyfile",
        ],
        &["--key {FILE}"],
    ),
    (
        &[
            "sni",
            "servername",
            "cname",
            "tls-server-name",
            "server-hostname",
        ],
        &["--server-name {NAME}"],
    ),
    (
        &[
            "ciphers",
            "ciphersuites",
            "tls13-ciphers",
            "cipher",
            "cipher-suites",
            "tls-ciphers",
            "tls-cipher-suites",
            "cipher-list",
        ],
        &["--suite {SUITE}"],
    ),
    (&["curves", "groups"], &["--group {GROUP}"]),
    (&["tlsv1.3", "tls1.3", "tls1_3"], &["--tls-version 1.3"]),
    (&["tls1.2", "tls1_2"], &["--tls-version 1.2"]),
    // Switches of curl are minimums, and this is all that Plimsoll has.
    (
        &["tlsv1.2", "tlsv1.1", "tlsv1.0", "tlsv1"],
        &["--tls-version 1.3 --tls-version 1.2"],
    ),
    (&["pinnedpubkey", "fingerprint"], &["--pin {FINGERPRINT}"]),
    (
        &[
            "session-tickets",
            "reuse",
            "tls-resume",
            "session-resumption",
        ],
        &["--resume"],
    ),
    (&["crlfile", "crl-file"], &["--crl {FILE}"]),
    (
        &["keylog", "sslkeylogfile", "ssl-key-log"],
        &["--key-log {FILE}"],
    ),
    (&["0rtt", "tls-early-data", "zero-rtt"], &["--early-data"]),
    (
        &[
            "disable-keepalive",
            "disableKeepAlives",
            "no-keepalive",
            "no-connection-reuse",
            "new-connections",
            "close",
        ],
        &["--cold"],
    ),
    (
        &[
            "connection-active-timeout",
            "max-connection-age",
            "max-conn-age",
        ],
        &["--connection-lifetime {TIME}"],
    ),
    (
        &["requests-per-connection", "max-requests-per-connection"],
        &["--calls-per-connection {N}"],
    ),
    (
        &["connections-per-second", "conn-rate"],
        &["--connect-rate {N}/s"],
    ),
    (
        &[
            "x",
            "http-proxy",
            "https-proxy",
            "proxy-url",
            "socks-proxy",
            "socks5",
            "socks5-hostname",
            "all-proxy",
        ],
        &["--proxy {URL}"],
    ),
    (&["connect-to"], &["--resolve NAME:PORT:ADDRESS"]),
    (
        &[
            "interface",
            "laddr",
            "local-ips",
            "local-address",
            "source-ip",
            "bind-address",
        ],
        &["--source {ADDRESS}"],
    ),
    (&["dns-ttl", "ttl"], &["--resolve-interval {TIME}"]),
    // Results.
    (
        &[
            "o",
            "O",
            "output",
            "output-dir",
            "result-dir",
            "artifact-dir",
            "output-artifact-dir",
            "report-dir",
        ],
        &["--out {DIR}"],
    ),
    (
        &["format", "output-format", "print-json", "json-output"],
        &["--json"],
    ),
    (&["html-report", "report-html"], &["--html {FILE}"]),
    (&["junit-xml", "junit-report", "xml"], &["--junit {FILE}"]),
    (
        &["record-requests", "save-detailed", "log-requests"],
        &["--requests"],
    ),
    (
        &[
            "otlp",
            "otel",
            "otlp-endpoint",
            "otel-endpoint",
            "metrics-url",
        ],
        &["--telemetry {URL}"],
    ),
    (&["random-seed", "rand-seed"], &["--seed {N}"]),
    (
        &["run-name", "test-name", "title", "tag"],
        &["--name {NAME}"],
    ),
    (
        &["no-tui", "no-progress", "disable-tqdm", "no-ui", "headless"],
        &["--progress none"],
    ),
    (&["silent", "s"], &["--quiet"]),
    (&["debug", "vv", "log-level"], &["--verbose"]),
    (&["plan-only", "check", "validate"], &["--dry-run"]),
    (&["save-config", "export-plan"], &["--save-plan {FILE}"]),
];

/// Flags that take no value in Plimsoll but a number in other tools, each with the counterpart of the other tools'
/// flag.
const SWITCHES_WITH_NUMBER: [(&str, &str); 2] =
    [("--requests", "--calls {N}"), ("-q", "--rate {N}/s")];

/// Flags of other tools without a counterpart in Plimsoll, with the reason.
const FLAGS_WITHOUT_COUNTERPART: [(&[&str], &str); 5] = [
    (
        &["http3", "h3", "quic", "http3-only"],
        "HTTP/3 is not spoken; --http-version auto takes HTTP/2 where the server offers it",
    ),
    (
        &[
            "header-file",
            "headers-file",
            "header_file",
            "metadata-file",
        ],
        "the file can't be read; write each field into the line: -H 'NAME: VALUE'",
    ),
    (
        &["ciphers", "ciphersuites", "cipher", "cipher-suites"],
        "the suite is not supported; --suite names one of TLS 1.3 or 1.2",
    ),
    (
        &["retry", "retries", "max-retries", "retry-delay"],
        "a call that fails is counted, and not made again",
    ),
    (
        &[
            "latency",
            "latencies",
            "percentiles",
            "u_latency",
            "histogram",
            "L",
            "l",
        ],
        "leave it out: each report has the percentiles, and `plimsoll report LATEST --histogram` bars",
    ),
];

mod by_value;
mod combined_flags;
mod limits;
mod lookup;
mod searches;
mod tips;
mod values;
mod whole_line;

pub(crate) use limits::is_time;
pub(crate) use lookup::{find_counterpart, find_counterparts, innermost_command};
use lookup::{find_switch_with_number, first_fitting_counterpart};
pub(crate) use searches::{command_for_address, search_tip};
pub(crate) use tips::{add_tip, whole_line_tip};
pub(crate) use whole_line::is_known;

#[cfg(test)]
mod tests;
