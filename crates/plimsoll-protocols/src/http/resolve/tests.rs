use std::io;
use std::path::Path;

use plimsoll_model::Plan;
use plimsoll_model::spec::{Problem, read, resolve};

use super::*;
use crate::registry::register_protocols;

/// An environment with a variable and a few files.
struct World;

impl ResolveContext for World {
    fn env_variable(&self, name: &str) -> Option<String> {
        (name == "PASSWORD").then(|| "hush".to_owned())
    }
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("dir/text.txt") => Ok(b"plimsoll-form-0 {{seq}}\r\n".to_vec()),
            Some("image.png") => Ok(vec![0x89, 0xff, b'P']),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn resolved(text: &str) -> Result<Plan, Vec<Problem>> {
    register_protocols();
    resolve(&read(text).expect("readable"), &World)
}

fn plan(text: &str) -> Plan {
    resolved(text).expect("right")
}

fn problems_of(text: &str) -> Vec<String> {
    let problems = resolved(text).expect_err("a wrong plan");
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn http_request_fills_in_defaults() {
    let text = |section: &str| {
        format!(
            "target = \"http://a:1/x?y={{{{seq}}}}\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n{section}\n"
        )
    };
    let http = |text: &str| plan(text).call.downcast_ref::<HttpCall>().unwrap().clone();
    let bare = http(&text(""));
    assert_eq!((&*bare.method, &*bare.path), ("GET", "/x?y={{seq}}"));
    assert_eq!((bare.expect, bare.headers.len()), (vec![(200, 299)], 0));
    let full = text(
        "body = '{\"a\": {{seq}}, \"b\": \"{{uuid}}\"}'\nexpect = [204, \"3xx\"]\nheaders = { X-A = \"1\", x-b = \"{{seq}}\" }\n\
         expect_headers = { X-C = \"2\" }\nstream = \"ndjson\"\nstream_until = 'contains:\"done\"'\nmax_body = \"1KiB\"",
    );
    let call = http(&full);
    assert_eq!((&*call.method, call.max_body), ("POST", 1024));
    assert_eq!(call.expect, [(204, 204), (300, 399)]);
    let headers = [("x-a", "1"), ("content-type", "application/json")];
    assert_eq!(
        call.headers,
        headers.map(|(n, v)| (n.to_owned(), v.to_owned()))
    );
    assert_eq!(call.expect_headers, [("x-c".to_owned(), "2".to_owned())]);
    let varying = call.varying.as_ref().expect("it varies");
    assert_eq!(varying.headers.len(), 1);
    let body = varying.body.as_ref().expect("and so does its body");
    assert_eq!((body.quoted[1], body.quoted[3]), (false, true));
    // The plan in a run directory resolves to the same plan again.
    for text in [full, text("expect_body = \"ok\"")] {
        let spec = read(&text).expect("readable");
        let kept = spec.with_defaults(&plan(&text)).to_toml().expect("toml");
        assert_eq!(plan(&kept).call, plan(&text).call, "{kept}");
    }
}

#[test]
fn plans_of_older_versions_compare_equal() {
    register_protocols();
    let keys = |old: &str, new: &str| -> Vec<String> {
        let plan = |keys: &str| format!("target = 'http://a:1'\n[call.http]\n{keys}\n");
        let found = plimsoll_model::plan_text::plan_differences(&plan(old), &plan(new));
        found.into_iter().map(|difference| difference.key).collect()
    };
    let nothing: [&str; 0] = [];
    for (old, new) in [
        ("stream = 'openai'", "api = 'chat'"),
        (
            "stream = 'openai'\npath = '/v1/chat/completions'",
            "api = 'chat'\npath = '/v1/chat/completions'",
        ),
        (
            "stream = 'openai'\npath = '/v1/completions?x'",
            "api = 'completions'\npath = '/v1/completions?x'",
        ),
        ("api = 'embeddings'\nstream = false", "api = 'embeddings'"),
        (
            "",
            "version = '1.1'\nmax_body = '4294967295B'\nmax_head = '64KiB'",
        ),
    ] {
        assert_eq!(keys(old, new), nothing, "{old}");
    }
    for (old, new, key) in [
        ("stream = 'openai'", "api = 'responses'", "call.http.api"),
        (
            "api = 'chat'\nstream = false",
            "api = 'chat'",
            "call.http.stream",
        ),
        ("stream = 'sse'", "api = 'chat'", "call.http.api"),
        ("", "max_head = '1MiB'", "call.http.max_head"),
    ] {
        assert!(keys(old, new).iter().any(|found| found == key), "{old}");
    }
}

#[test]
fn objectives_that_answers_never_have_are_refused() {
    let refused = |section: &str, objective: &str| {
        let text = format!(
            "target = \"http://a:1/\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n{section}\n\
             [objective]\n\"{objective}\" = \"{}\"\n",
            if objective.starts_with("finish") {
                "< 5%"
            } else {
                "< 1s"
            }
        );
        match resolved(&text) {
            Ok(_) => None,
            Err(problems) => Some(problems.iter().map(ToString::to_string).collect::<String>()),
        }
    };
    for (section, objective, why) in [
        ("", "ttft.p99", "needs call.http.api or call.http.stream"),
        ("", "finish.length", "needs call.http.api"),
        ("stream = \"sse\"", "itl.p99", "needs call.http.api"),
        ("api = \"chat\"\nstream = false", "ttft.p99", "--no-stream"),
        ("api = \"chat\"\nstream = false", "tpot.mean", "--no-stream"),
        ("api = \"chat\"", "message_gap.p99", "use ttft or itl"),
        (
            "api = \"embeddings\"",
            "ttft.p99",
            "numbers, without tokens",
        ),
        (
            "api = \"rerank\"",
            "token_gap.p99",
            "numbers, without tokens",
        ),
        (
            "api = \"embeddings\"",
            "finish.length",
            "numbers, without tokens",
        ),
    ] {
        let found = refused(section, objective).unwrap_or_default();
        let named = format!("objective.{objective}");
        assert!(
            found.contains(&named) && found.contains(why),
            "{section} {objective}: {found}"
        );
    }
    for (section, objective) in [
        ("", "p99"),
        ("", "first_byte.p99"),
        ("stream = \"sse\"", "ttft.p99"),
        ("stream = \"sse\"", "message_gap.p99"),
        ("api = \"chat\"", "ttft.p99"),
        ("api = \"chat\"", "itl.p99"),
        ("api = \"chat\"\nstream = false", "finish.length"),
        ("api = \"chat\"\nstream = false", "p99"),
        ("api = \"embeddings\"", "service.p99"),
    ] {
        assert_eq!(refused(section, objective), None, "{section} {objective}");
    }
}

#[test]
fn grpc_web_and_connect_default_to_post() {
    let http = |section: &str| {
        let load = "target = \"http://a:1/a.B/C\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n";
        let plan = plan(&format!("{load}{section}\n"));
        plan.call.downcast_ref::<HttpCall>().unwrap().clone()
    };
    for (section, kind) in [
        ("stream = \"grpc-web\"", "application/grpc-web+proto"),
        (
            "stream = \"connect\"\nbody = \"1\"",
            "application/connect+json",
        ),
        (
            "stream = \"grpc-web\"\nbody = '[{{seq}}]'",
            "application/grpc-web+json",
        ),
        (
            "stream = \"connect\"\nheaders = { Content-Type = \"a/b\" }",
            "a/b",
        ),
    ] {
        let call = http(section);
        let expected = [("content-type".to_owned(), kind.to_owned())];
        assert_eq!((&*call.method, &call.headers[..]), ("POST", &expected[..]));
    }
}

#[test]
fn streams_without_given_end_end_with_load() {
    for (section, ends) in [
        ("stream = \"sse\"", true),
        ("stream = \"ndjson\"\n[objective]\nerrors = \"< 1%\"", true),
        (
            "stream = \"sse\"\n[objective]\n\"ttft.p99\" = \"< 1s\"",
            true,
        ),
        ("stream = \"sse\"\n[objective]\np99 = \"< 1s\"", false),
        ("stream = \"sse\"\nstream_until = \"end\"", false),
        ("stream = \"sse\"\nstream_duration = \"1s\"", false),
        ("stream = \"openai\"", false),
        ("stream = \"connect\"", false),
        ("", false),
    ] {
        let load =
            "target = \"http://a:1/x\"\n[load]\nclients = 1\nduration = \"9s\"\n[call.http]\n";
        let plan = plan(&format!("{load}{section}\n"));
        let call = plan.call.downcast_ref::<HttpCall>().unwrap();
        assert_eq!(call.ends_with_load, ends, "{section}");
    }
}

#[test]
fn invalid_http_request_errors_suggest_fix() {
    for (section, expected) in [
        (
            "method = \"get\"",
            "`call.http.method`: methods are case-sensitive (RFC 9110, 9.1): write GET",
        ),
        (
            "method = \"CONNECT\"",
            "`call.http.method`: CONNECT opens a tunnel",
        ),
        (
            "method = \"HEAD\"\nexpect_body = \"x\"",
            "`call.http.method`: answers to HEAD have no body",
        ),
        (
            "path = \"x\"",
            "`call.http.path`: `x` is not a path: begin with `/`",
        ),
        (
            "path = \"/{{message}}\"",
            "`call.http.path`: {{message}}: not supported in a path",
        ),
        (
            "body = \"{{row.a}}\"",
            "`call.http.body`: `{{row.a}}` needs rows",
        ),
        (
            "body = \"a\"\nbody_file = \"b\"",
            "`call.http.body_file`: can't be combined with call.http.body",
        ),
        (
            "expect = []",
            "`call.http.expect`: empty, so no call could succeed",
        ),
        ("expect_body = \"\"", "`call.http.expect_body`: empty"),
        (
            "stream = \"csv\"",
            "`call.http.stream`: `csv` is unknown: use \"sse\", \"ndjson\", \"openai\", \"grpc-web\" or \"connect\"",
        ),
        (
            "stream = \"connect\"\nstream_error = \"x\"",
            "`call.http.stream_error`: streams of connect mark their end themselves",
        ),
        (
            "stream_until = \"x\"",
            "`call.http.stream_until`: needs call.http.stream",
        ),
        (
            "stream = \"ndjson\"\nstream_until = \"event:x\"",
            "`call.http.stream_until`: lines of JSON and messages have no event names",
        ),
        ("max_body = \"0B\"", "`call.http.max_body`: out of range"),
        (
            "max_body = \"1KiB\"\nexpect_size = \"2KiB\"",
            "`call.http.expect_size`: larger than call.http.max_body allows: at most 1KiB",
        ),
        (
            "stream = \"sse\"\nexpect_size = \"2KiB\"",
            "`call.http.expect_size`: not used with streams or WebSockets",
        ),
        (
            "method = \"HEAD\"\nexpect_size = \"2KiB\"",
            "`call.http.method`: answers to HEAD have no body",
        ),
        (
            "headers = { content-length = \"1\" }",
            "`call.http.headers.content-length`: message framing is set",
        ),
        (
            "headers = { host = \"b\" }",
            "`call.http.headers.host`: has a key of its own: write call.http.host",
        ),
        (
            "headers = { \"a b\" = \"1\" }",
            "`call.http.headers.a b`: not a field name",
        ),
    ] {
        let text = format!(
            "target = \"http://a:1\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n{section}\n"
        );
        let problems = problems_of(&text);
        assert!(problems[0].starts_with(expected), "{section}: {problems:?}");
    }
}

#[test]
fn url_path_is_normalized() {
    for (url, path) in [
        ("http://a:1?q=1", "/?q=1"),
        ("http://a:1#top", "/"),
        ("http://a:1/x?q#top", "/x?q"),
        ("http://a:1", "/"),
    ] {
        let text = format!("target = \"{url}\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n");
        let plan = resolved(&text).unwrap_or_else(|problems| panic!("{url}: {problems:?}"));
        let call = plan.call.downcast_ref::<HttpCall>().expect("HTTP");
        assert_eq!(call.path, path, "{url}");
    }
    let text = "target = \"http://a:1/caf\u{e9} x\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n";
    let problems = problems_of(text);
    assert!(
        problems[0].contains("write `/caf%C3%A9%20x`"),
        "{problems:?}"
    );
}

#[test]
fn invalid_header_value_error_names_field() {
    let text = "target = \"http://a:1\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\nheaders = { x-c = \"\u{fc}\" }\n";
    let problems = problems_of(text);
    let expected = "`call.http.headers.x-c`: not a field value: use printable ASCII";
    assert!(problems[0].starts_with(expected), "{problems:?}");
}

fn with_section(section: &str) -> String {
    format!("target = \"http://a:1/x\"\n[load]\nclients = 1\ncalls = 1\n[call.http]\n{section}\n")
}

fn http_call_of(section: &str) -> HttpCall {
    let plan = plan(&with_section(section));
    plan.call.downcast_ref::<HttpCall>().unwrap().clone()
}

#[test]
fn basic_authentication_is_encoded_and_saved_by_name() {
    for (pair, encoded, saved) in [
        // "me:hush" and "me:$PASSWORD".
        ("me:$PASSWORD", "bWU6aHVzaA==", "basic = \"me:$PASSWORD\""),
        (
            "me:hush",
            "bWU6aHVzaA==",
            "env = \"PLIMSOLL_METADATA_AUTHORIZATION\"",
        ),
        (
            "me:$$PASSWORD",
            "bWU6JFBBU1NXT1JE",
            "env = \"PLIMSOLL_METADATA_AUTHORIZATION\"",
        ),
    ] {
        let text = with_section(&format!(
            "headers = {{ authorization = {{ basic = \"{pair}\" }} }}"
        ));
        let resolved = plan(&text);
        let call = resolved.call.downcast_ref::<HttpCall>().unwrap();
        let expected = ("authorization".to_owned(), format!("Basic {encoded}"));
        assert_eq!(call.headers, [expected], "{pair}");
        let spec = read(&text).expect("readable");
        for kept in [spec.with_defaults(&resolved), spec.without_secrets()] {
            let kept = kept.to_toml().expect("toml");
            assert!(kept.contains(saved), "{pair}: {kept}");
            assert!(!kept.contains("hush") && !kept.contains(encoded), "{kept}");
        }
    }
    for (pair, problem) in [
        ("me", "no colon"),
        ("me:$OTHER-hush", "its variable is not set"),
        ("me:{{seq}}", "fields are not filled in here"),
        ("me:a\\nb", "a control character"),
    ] {
        let text = with_section(&format!(
            "headers = {{ authorization = {{ basic = \"{pair}\" }} }}"
        ));
        let found = problems_of(&text);
        assert!(found[0].contains(problem), "{found:?}");
        assert!(!found[0].contains("hush"), "{found:?}");
    }
}

/// The boundary is in none of the parts; names and files keep their order.
#[test]
fn form_becomes_multipart_body() {
    let section = "form = [{ name = \"a\\\"b\", value = \"1\" }, { name = \"t\", file = \"dir/text.txt\" }, \
                   { name = \"i\", file = \"image.png\", filename = \"x\", content_type = \"image/png\" }]";
    let call = http_call_of(section);
    let kind = "multipart/form-data; boundary=plimsoll-form-1";
    assert_eq!(call.method, "POST");
    let expected = ("content-type".to_owned(), kind.to_owned());
    assert_eq!(call.headers, [expected]);
    let mut body =
        b"--plimsoll-form-1\r\ncontent-disposition: form-data; name=\"a%22b\"\r\n\r\n1\r\n\
        --plimsoll-form-1\r\ncontent-disposition: form-data; name=\"t\"; filename=\"text.txt\"\r\n\
        content-type: application/octet-stream\r\n\r\nplimsoll-form-0 {{seq}}\r\n\r\n\
        --plimsoll-form-1\r\ncontent-disposition: form-data; name=\"i\"; filename=\"x\"\r\n\
        content-type: image/png\r\n\r\n"
            .to_vec();
    body.extend_from_slice(&[0x89, 0xff, b'P']);
    body.extend_from_slice(b"\r\n--plimsoll-form-1--\r\n");
    assert_eq!(
        String::from_utf8_lossy(&call.body),
        String::from_utf8_lossy(&body)
    );
}

#[test]
fn form_values_vary_and_files_do_not() {
    let section =
        "form = [{ name = \"n\", value = \"{{seq}}\" }, { name = \"t\", file = \"dir/text.txt\" }]";
    let call = http_call_of(section);
    let varying = call.varying.as_ref().expect("it varies");
    let body = varying.body.as_ref().expect("its body does");
    assert!(body.typed.contains("\r\n\r\n{{seq}}\r\n"), "{}", body.typed);
    assert!(body.typed.contains("-0 {{{{seq}}\r\n"), "{}", body.typed);
    // The plan of a run has the file's content, and resolves to the same call.
    let text = with_section(section);
    let spec = read(&text).expect("readable");
    let kept = spec.with_defaults(&plan(&text)).to_toml().expect("toml");
    assert!(!kept.contains("text.txt\"\n"), "{kept}");
    assert_eq!(plan(&kept).call, plan(&text).call, "{kept}");
}

#[test]
fn forms_that_cannot_be_sent_are_named() {
    for (section, problem) in [
        (
            "form = [{ name = \"a\", value = \"1\" }]\nbody = \"x\"",
            "call.http.form`: can't be combined with call.http.body",
        ),
        ("form = []", "a form without parts"),
        ("form = [{ name = \"a\" }]", "either a `value` or a `file`"),
        ("form = [{ value = \"a\" }]", "give the field a name"),
        (
            "form = [{ name = \"a\", file = \"none\" }]",
            "call.http.form.0.file`: can't read none",
        ),
        (
            "form = [{ name = \"a\", value = \"{{seq}}\" }, { name = \"i\", file = \"image.png\" }]",
            "files have to be UTF-8",
        ),
        (
            "form = [{ name = \"a\", value = \"1\" }]\nheaders = { Content-Type = \"a/b\" }",
            "a form has its own",
        ),
    ] {
        let found = problems_of(&with_section(section));
        assert!(found[0].contains(problem), "{section}: {found:?}");
    }
}
