//! Synonyms that are tried before the general table, because their counterpart depends on the form of the value, or on
//! the command.

use super::FlagSynonym;

/// Flags of other tools whose value says what is meant.
pub(super) const SYNONYMS_BY_VALUE: &[FlagSynonym] = &[
    // Objectives, with the limit that was typed.
    (
        &[
            "threshold",
            "thresholds",
            "slo",
            "sla",
            "assert",
            "assertion",
            "expect-latency",
            "ensure",
            "objective",
        ],
        &["--objective {LIMIT}", "--objective 'p99 < 10ms'"],
    ),
    (
        &["fail-on", "fail-if", "fail-when", "abort-on", "error-on"],
        &[
            "--objective {FAILURE}",
            "--objective {LIMIT}",
            "--objective 'p99 < 10ms'",
        ],
    ),
    (&["p50", "median"], &["--objective {p50}"]),
    (&["p90"], &["--objective {p90}"]),
    (&["p95"], &["--objective {p95}"]),
    (
        &["p99", "max-latency", "latency-limit"],
        &["--objective {p99}"],
    ),
    (&["p999", "p99.9"], &["--objective {p99.9}"]),
    (
        &[
            "max-error-rate",
            "error-threshold",
            "failure-rate",
            "max-errors",
            "error-rate",
        ],
        &["--objective {ERRORS}", "--objective 'errors < 0.1%'"],
    ),
    // Secrets come from the environment.
    (
        &[
            "oauth2-bearer",
            "bearer",
            "token",
            "auth-token",
            "jwt",
            "bearer-token",
        ],
        &[
            "-H 'authorization: Bearer {TOKEN}'",
            "--metadata 'authorization: Bearer {TOKEN}'",
        ],
    ),
    (
        &["api-key", "openai-api-key", "apikey"],
        &["--api-key-env OPENAI_API_KEY", "-H 'x-api-key: $API_KEY'"],
    ),
    // Without redirects, the redirect itself is the answer.
    (
        &["max-redirects", "max-redirs"],
        &["--expect 2xx,3xx{0}", "--redirects={N}"],
    ),
    // Bounds of TLS versions, of which all that lie within them are offered.
    (
        &[
            "min-tls",
            "tls-min",
            "tls-min-version",
            "min-tls-version",
            "tls-minimum-version",
        ],
        &[
            "--tls-version 1.3{1.3}",
            "--tls-version 1.3 --tls-version 1.2{1.2}",
            "--tls-version 1.3 --tls-version 1.2{1.1}",
            "--tls-version 1.3 --tls-version 1.2{1.0}",
        ],
    ),
    (
        &[
            "tls-max",
            "max-tls",
            "tls-max-version",
            "max-tls-version",
            "tls-maximum-version",
        ],
        &[
            "--tls-version 1.2{1.2}",
            "--tls-version 1.3 --tls-version 1.2{1.3}",
        ],
    ),
    // A histogram among the types of a report.
    (&["type"], &["--histogram{hist}"]),
    // Messages of sockets, which have no method.
    (&["m", "text", "send", "msg", "message"], &["-d {MESSAGE}"]),
    // Files of rows vary a request, and other files are its body.
    (
        &["data-file", "f", "file", "input", "input-file", "D"],
        &["--dataset {FILE}", "--rows {ROWS}"],
    ),
    (
        &["dataset", "dataset-path", "prompts-file", "prompt-file"],
        &["--dataset {FILE}"],
    ),
    // Results: the file's name or the format says which.
    (
        &[
            "o",
            "O",
            "output",
            "out",
            "export",
            "result-file",
            "results-file",
            "output-file",
            "out-file",
            "report-file",
            "save-to",
            "format",
            "output-format",
            "report",
        ],
        &[
            "--html {HTML}",
            "--json > {JSON}",
            "--json{json}",
            "--requests && plimsoll report LATEST --export csv {CSV}",
            "--requests && plimsoll report LATEST --export csv results{csv}",
            "--export csv {CSV}",
            "--markdown -{markdown}",
        ],
    ),
    (
        &[
            "summary-export",
            "export-json",
            "log-file",
            "json-output",
            "json-file",
        ],
        &["--json > {JSON}"],
    ),
    (
        &["csv", "csv-file", "csv-output"],
        &["--requests && plimsoll report LATEST --export csv {NEW CSV}"],
    ),
    // No load ends at its first error.
    (
        &FAIL_FAST_FLAGS,
        &["--objective 'errors < 0.1%' --abort-after 1s"],
    ),
    // Runs to compare.
    (
        &["current", "new", "after", "contender", "head", "b"],
        &["--candidate {FILE}"],
    ),
    (
        &["old", "before", "base", "reference", "a"],
        &["--baseline {FILE}"],
    ),
    // Bounds of a search.
    (
        &["max-rate", "max", "end", "max-rps", "max-qps", "to"],
        &["--most {N}/s"],
    ),
    (
        &["min-rate", "min", "start", "min-rps", "from"],
        &["--least {N}/s"],
    ),
    (
        &["timeout-total", "max-time", "total-time"],
        &["--budget {TIME}"],
    ),
    // Loads.
    (
        &["max-vus", "maxVUs", "maxvus", "max-outstanding"],
        &["--max-in-flight {N}"],
    ),
    (
        &[
            "rampup",
            "ramp_up",
            "rampUp",
            "ramp-up",
            "ramp-up-time",
            "rampup-time",
            "ramp",
            "ramp-time",
            "ramp-duration",
        ],
        &["--warmup {TIME}"],
    ),
    (&["hold", "hold-for", "plateau"], &["--duration {TIME}"]),
    // The address of an endpoint that is scraped.
    (&["prometheus", "prom"], &["--telemetry 127.0.0.1{:PORT}"]),
    (&["temperature"], &["--extra {temperature}"]),
    (&["top-p", "top_p"], &["--extra {top_p}"]),
    (&["top-k", "top_k"], &["--extra {top_k}"]),
    (&["frequency-penalty"], &["--extra {frequency_penalty}"]),
];

/// Flags without a counterpart: whether they take a value, and the reason.
pub(super) const FLAGS_LEFT_OUT: &[(&[&str], bool, &str)] = &[
    (
        &["keepalive", "keep-alive-time", "keepalive-time"],
        true,
        "no keepalive pings are sent",
    ),
    (
        &[
            "percentiles",
            "summary-trend-stats",
            "percentile-metrics",
            "metric-percentiles",
            "latency-percentiles",
            "quantiles",
        ],
        true,
        "each report has the percentiles",
    ),
    (
        &["pre-allocated-vus", "preAllocatedVUs", "startVUs"],
        true,
        "connections are opened before the load starts",
    ),
    (
        &["executor", "scenario"],
        true,
        "--rate, --step and --clients say how calls start",
    ),
    (
        &["spawn-rate", "hatch-rate"],
        true,
        "all clients start together",
    ),
    (
        &["tokenizer", "dataset-name", "backend-type"],
        true,
        "the prompts are Plimsoll's own, or those of --dataset",
    ),
    (
        &[
            "threshold",
            "fail-on-regression",
            "tolerance",
            "fail-threshold",
            "max-regression",
        ],
        true,
        "a comparison says which differences are real, and has no limit; `plimsoll track` measures two versions of a service, with an exit code",
    ),
    (
        &["type", "buckets", "histogram-buckets"],
        true,
        "a report has percentiles, and `plimsoll report RUN --histogram` chooses the bounds of its bars itself",
    ),
    (
        &[
            "nocatchup",
            "no-catchup",
            "emit-defaults",
            "format-error",
            "no-summary",
            "no-color",
            "color",
        ],
        false,
        "it changes neither the load nor the figures",
    ),
    (
        &[
            "prometheus-push",
            "prometheus",
            "prom",
            "pushgateway",
            "push-gateway",
            "prometheus-remote-write",
            "statsd",
            "influxdb",
            "influx",
            "graphite",
            "datadog",
        ],
        true,
        "--telemetry HOST:PORT answers scrapes while the load runs, --telemetry URL posts to an OTLP collector, and `plimsoll report LATEST --prometheus -` prints the figures for a push",
    ),
    (
        &["fail-on", "fail-if", "fail-when"],
        true,
        "a comparison says which differences are real, and has no limit; `plimsoll track` measures two versions of a service, with an exit code",
    ),
    (&["save-result"], false, "each run leaves a directory"),
    (
        &["plaintext"],
        false,
        "an address without a scheme is plaintext",
    ),
];

/// Flags of other tools whose value is the target. Plimsoll takes the target as a word without a flag.
pub(super) const TARGET_FLAGS: [&str; 11] = [
    "url", "host", "target", "address", "addr", "server", "base-url", "endpoint", "uri", "u", "H",
];

/// Flags that start clients gradually, which Plimsoll's loads don't do.
pub(super) const RAMP_FLAGS: [&str; 9] = [
    "rampup",
    "ramp_up",
    "rampUp",
    "ramp-up",
    "ramp-up-time",
    "rampup-time",
    "ramp",
    "ramp-time",
    "ramp-duration",
];

/// Flags that end a load at its first error.
pub(super) const FAIL_FAST_FLAGS: [&str; 8] = [
    "fail-fast",
    "failfast",
    "fail-on-error",
    "stop-on-error",
    "exit-on-error",
    "abort-on-error",
    "stop-on-first-error",
    "bail",
];
