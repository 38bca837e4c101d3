//! The flags of `plimsoll http`: one request.

use std::collections::BTreeMap;

use clap::{ArgMatches, Args};
#[cfg(feature = "targets")]
use plimsoll_model::Plan;
use plimsoll_model::spec::{LoadSpec, RowsSpec, Spec, apply_flags_to_optional};

use super::call::HttpVersion;
use super::foreign_lines;
use super::form::parse_part;
#[cfg(feature = "targets")]
use super::probe;
#[cfg(feature = "targets")]
use super::redirects;
use super::section::{ExpectedValues, HttpSpec};
use crate::interface::flags::{BasicAuthFlags, CredentialFlags, parse_fields, split_name_value};
use crate::interface::foreign::command_lines::LineTool;
use crate::interface::protocol_module::{
    EnvLookup, ProtocolCommand, UsageError, split_text_or_file,
};
#[cfg(feature = "targets")]
use crate::interface::protocol_module::{PrepareError, RedirectHop};
#[cfg(feature = "targets")]
use crate::interface::server_query::QueryContext;
#[cfg(feature = "targets")]
use crate::interface::service_offer::ServiceOffer;

/// Load-test an HTTP service: requests of any method, and streamed answers.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Call",
    before_help = "\
Example: 500 requests a second over 20 connections; an answer is good with 200 and this text
  plimsoll http http://localhost:8080/search?q=a --connections 20 --rate 500/s --duration 10s \\
      --expect 200 --expect-body '\"hits\"'
Example: 50 clients, each waiting for its answer, that post rows of a file
  plimsoll http https://localhost:8443/orders --ca certs/ca.crt --rows users.csv \\
      -d '{\"user\": \"{{row.user}}\", \"id\": {{seq}}}' -H 'authorization: $TOKEN' --clients 50 --duration 10s
Example: server-sent events until [DONE]: the time to the first, and the gaps between them
  plimsoll http http://localhost:8080/sse/20 --stream sse --stream-until '[DONE]' --connections 50 --rate 20/s --duration 10s
Example: the GET requests of an access log, at its times, twice as fast; at most 100 are in flight at once
  plimsoll http http://localhost:8080 --replay access.log --filter method=GET --speed 2x --connections 200 --max-in-flight 100"
)]
pub struct HttpFlags {
    #[command(flatten)]
    section: HttpSpec,

    /// Follow at most this many redirects before the load: the URL is requested once, with GET, and the load goes to
    /// the last location; credentials are not sent to another origin [default: none; without a number: 10].
    #[arg(
        short = 'L',
        long,
        visible_alias = "location",
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10",
        value_parser = clap::value_parser!(u32).range(..=100)
    )]
    redirects: Option<u32>,

    #[command(flatten)]
    credentials: CredentialFlags,

    #[command(flatten)]
    basic: BasicAuthFlags,

    #[command(flatten)]
    rows: RowsSpec,
}

impl ProtocolCommand for HttpFlags {
    type Section = HttpSpec;
    /// Flags by which curl and other tools choose the version of HTTP.
    const FLAG_SYNONYMS: &[(&str, &str)] = &[
        ("--http1.1", "--http-version=1.1"),
        ("--http2", "--http-version=2"),
        ("--http2-prior-knowledge", "--http-version=2"),
    ];
    const LINE_TOOLS: &'static [&'static LineTool] = &foreign_lines::HTTP_TOOLS;
    const TARGET_HELP: &str =
        "http://HOST:PORT/PATH (plaintext), https://HOST:PORT/PATH (TLS), or unix:/SOCKET:/PATH";

    fn max_redirects(typed: &ArgMatches) -> u32 {
        typed.get_one("redirects").copied().unwrap_or(0)
    }

    #[cfg(feature = "targets")]
    fn follow_redirect(plan: &Plan, spec: &mut Spec) -> Result<Option<RedirectHop>, PrepareError> {
        redirects::follow_redirect(plan, spec)
    }

    #[cfg(feature = "targets")]
    fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
        probe::probe(address, asking)
    }

    fn into_section(self, spec: &mut Spec, _: EnvLookup<'_>) -> Result<HttpSpec, UsageError> {
        apply_flags_to_optional("rows", &self.rows, &mut spec.rows)?;
        let typed = self.section;
        let (body, body_file) = split_text_or_file(typed.body.as_deref())?;
        let mut headers = parse_fields("--header", &typed.typed.headers)?;
        self.credentials.add_to(&mut headers)?;
        self.basic.add_to(&mut headers)?;
        let mut expected = BTreeMap::<String, Vec<String>>::new();
        for typed in &typed.typed.expect_headers {
            let (name, value) = split_name_value("--expect-header", typed, "x-cache: hit")?;
            let values = expected.entry(name.to_ascii_lowercase()).or_default();
            values.push(value.to_owned());
        }
        let expect_headers = expected.into_iter().map(|(name, mut values)| {
            let values = match values.len() {
                1 => ExpectedValues::One(values.remove(0)),
                _ => ExpectedValues::All(values),
            };
            (name, values)
        });
        let form = typed.typed.form.iter();
        let form: Vec<_> = form
            .map(|part| parse_part(part))
            .collect::<Result<_, _>>()?;
        Ok(HttpSpec {
            form: (!form.is_empty()).then_some(form),
            body,
            body_file,
            compressed: typed.compressed.filter(|asked| *asked),
            typed_names: typed.typed_names.filter(|asked| *asked),
            headers,
            expect_headers: expect_headers.collect(),
            ..typed
        })
    }
}

/// Returns whether calls would queue for a connection: connections are reused, their number is not set, and they may
/// use HTTP/1.1, which carries one call at a time.
pub(super) fn would_queue(load: &LoadSpec, version: Option<HttpVersion>) -> bool {
    let kept = load.reuse.as_ref().is_none_or(|reuse| reuse != "never");
    kept && version != Some(HttpVersion::V2) && load.connections.is_none()
}
