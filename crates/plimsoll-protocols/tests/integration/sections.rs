//! Tests of the plan sections of protocols: they are read, resolved and saved, and errors name their keys.

mod replays;
mod secrets;
mod traces;
#[path = "sections/users.rs"]
mod users;

use crate::built;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use plimsoll_model::Plan;
use plimsoll_model::spec::{self, CallSpec, ResolveContext, TlsLibrary};
use plimsoll_protocols::bolt::{BoltCall, FrameLayout};
use plimsoll_protocols::hold::HoldOptions;
use plimsoll_protocols::http::HttpCall;
use plimsoll_protocols::plugin::{PluginCall, PluginOptions};
use plimsoll_protocols::registry::register_protocols;

/// An environment with files only.
struct FileContext;

impl ResolveContext for FileContext {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }
    fn read_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }
}

fn hold_plan(call: &str, load: &str) -> String {
    format!("target = \"tls://a:1\"\n[tls]\nca = \"ca\"\n[call.hold]\n{call}\n[load]\n{load}\n")
}

/// Returns the problems of a plan.
fn problems(text: &str) -> Vec<String> {
    register_protocols();
    let found = spec::read(text).and_then(|spec| spec::resolve(&spec, &FileContext));
    let found = found.expect_err("a wrong plan");
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn message_list_error_gives_index() {
    let plan = "target = \"grpc://a:1\"\n[call.grpc]\nmethod = \"a.B/C\"\nmessage_binary = [\"a.bin\", 3]\n[load]\nclients = 1\n";
    let found = problems(plan);
    assert!(
        found[0].starts_with("`call.grpc.message_binary.1`: "),
        "{found:?}"
    );
}

#[test]
fn hold_section_round_trips() {
    register_protocols();
    let text = hold_plan("keepalive = \"2s\"", "duration = \"10s\"");
    let typed = spec::read(&text).expect("readable");
    let plan = spec::resolve(&typed, &FileContext).expect("right");
    assert_eq!(plan.name, "held connections");
    assert_eq!(plan.load.connections, 1_000);
    let saved = typed.with_defaults(&plan).to_toml().expect("writable");
    assert!(saved.contains("greeting = \"16B\""), "{saved}");
    let again = spec::resolve(&spec::read(&saved).expect("readable"), &FileContext).expect("right");
    assert_eq!(
        (&again.call, &again.load),
        (&plan.call, &plan.load),
        "{saved}"
    );
}

#[test]
fn hold_errors_name_key_and_span() {
    let unknown = problems(&hold_plan("greting = \"1B\"", "duration = \"1s\""));
    assert_eq!(unknown, ["`call.hold.greting`: unknown key in [call.hold]"]);
    let kind = hold_plan("keepalive = 3", "duration = \"1s\"");
    register_protocols();
    let found = spec::read(&kind).expect_err("a number without a unit");
    assert_eq!(found[0].key, "call.hold.keepalive");
    assert_eq!(&kind[found[0].span.clone().expect("a place")], "3");
    let size = problems(&hold_plan("message = \"1MiB\"", "duration = \"1s\""));
    assert_eq!(
        size,
        ["`call.hold.message`: 1MiB out of range: use 1B to 16KiB"]
    );
    let rate = problems(&hold_plan("", "rate = \"1/s\"\nduration = \"1s\""));
    assert!(
        rate[0].starts_with("`load.rate`: not used with held connections"),
        "{rate:?}"
    );
    let other = problems(
        "target = \"tls://a:1\"\n[call.grpc]\nmethod = \"a.B/C\"\n[load]\nclients = 1\ncalls = 1\n",
    );
    assert!(
        other[0].contains("scheme `tls` is for hold calls"),
        "{other:?}"
    );
    let missing = problems("[call.hold]\n[load]\nduration = \"1s\"\n");
    assert!(
        missing[0].contains("; tcp:// or tls:// to hold connections"),
        "{missing:?}"
    );
}

/// A ladder of held connections uses the scheme with TLS, and the plaintext scheme for rungs without TLS.
#[test]
fn hold_ladder_covers_plaintext_and_tls() {
    register_protocols();
    let plan = "target = \"tls://h:1\"\n[tls]\nca = \"ca\"\n[call.hold]\n[load]\nduration = \"1s\"\n[ladder]\ntls = [\"off\", \"server\"]\n";
    let rungs = spec::read(plan).expect("a plan").rungs().expect("rungs");
    let targets: Vec<_> = rungs.iter().filter_map(|r| r.spec.target.clone()).collect();
    assert_eq!(targets, ["tcp://h:1", "tls://h:1"]);
    let wrong = plan.replace(
        "tls = [\"off\", \"server\"]",
        "\"call.hold.message\" = [\"1B\", 2]",
    );
    let wrong = spec::read(&wrong)
        .expect("a plan")
        .rungs()
        .expect_err("no size");
    assert!(wrong.to_string().contains("`2` has no unit"), "{wrong}");
    assert_eq!(
        CallSpec::from_section(&HoldOptions::default())
            .unwrap()
            .scheme(true),
        "tls"
    );
}

fn plugin_plan(call: &str) -> String {
    format!(
        "target = \"plugin://a:7000\"\n[call.plugin]\n{call}\n[load]\nrate = \"10/s\"\nduration = \"1s\"\n"
    )
}

fn plan(text: &str) -> Plan {
    register_protocols();
    spec::resolve(&spec::read(text).expect("readable"), &FileContext).expect("right")
}

#[test]
fn plugin_call_has_documented_defaults() {
    let folder = tempfile::tempdir().expect("a folder");
    let codec = built::build_c_example(folder.path());
    let text = plugin_plan(&format!(
        "codec = '{}'\npayload = \"hello\"",
        codec.display()
    ));
    let plan = plan(&text);
    assert_eq!(plan.name, "x_example, open loop");
    let call: &PluginCall = plan.call.downcast_ref().expect("a plugin's");
    assert_eq!(call.codec, codec);
    assert!(call.frame.ends_with(b"hello"));
    assert_eq!(call.heartbeat, Some(Duration::from_secs(15)));
    assert_eq!((call.in_flight, call.max_frame), (None, 16 << 20));
    assert_eq!(plan.load.deadline, Some(Duration::from_secs(10)));
    let files = spec::read(&text).expect("readable").data_files();
    assert_eq!(files, [("call.plugin.codec".to_owned(), codec)]);
}

#[test]
fn saved_plugin_call_round_trips() {
    let folder = tempfile::tempdir().expect("a folder");
    let codec = built::build_c_example(folder.path());
    let text = plugin_plan(&format!(
        "codec = '{}'\npayload = \"x\"\nheartbeat = \"none\"\ndeadline = \"2s\"\nin_flight = 3\nmax_frame = \"1MiB\"",
        codec.display()
    ));
    let first = plan(&text);
    let typed = spec::read(&text).expect("readable");
    let saved = typed.with_defaults(&first).to_toml().expect("writable");
    let again = plan(&saved);
    assert_eq!(
        (&again.call, &again.load),
        (&first.call, &first.load),
        "{saved}"
    );
    assert_eq!(first.load.deadline, Some(Duration::from_secs(2)));
}

#[test]
fn plugin_call_errors_name_key() {
    for (call, needle) in [
        ("", "`call.plugin.codec`: missing: name the shared object"),
        (
            "codec = \"x.so\"\npayload = \"a\"\nframe = \"78\"",
            "`call.plugin.frame`: can't be combined with call.plugin.payload",
        ),
        (
            "codec = \"x.so\"\nin_flight = 0",
            "`call.plugin.in_flight`: 0",
        ),
        (
            "codec = \"x.so\"\nheartbeat = \"0s\"",
            "`call.plugin.heartbeat`: 0",
        ),
        (
            "codec = \"x.so\"\nmax_frame = \"2GiB\"",
            "`call.plugin.max_frame`: out of range",
        ),
        (
            "codec = \"absent.so\"",
            "`call.plugin.codec`: plugin absent.so: can't be read",
        ),
    ] {
        let problems = problems(&plugin_plan(call));
        assert!(
            problems.iter().any(|p| p.contains(needle)),
            "{call}: {problems:?}"
        );
    }
}

fn bolt_plan(call: &str) -> String {
    format!(
        "target = \"sofa://a:12200\"\n[call.bolt]\n{call}\n[load]\nrate = \"10/s\"\nduration = \"1s\"\n"
    )
}

#[test]
fn bolt_call_has_documented_defaults() {
    let plan = plan(&bolt_plan(
        "service = \"a.B:1.0\"\nmethod = \"c\"\narguments = \"[1]\"",
    ));
    assert_eq!(plan.name, "c, open loop");
    let call: &BoltCall = plan.call.downcast_ref().expect("a Bolt call");
    assert_eq!(call.method, "a.B:1.0/c");
    assert_eq!(call.layout, FrameLayout::V1);
    assert_eq!(call.timeout, Some(Duration::from_secs(10)));
    assert_eq!(call.heartbeat, Some(Duration::from_secs(15)));
    assert_eq!((call.oneway, call.in_flight, call.codec), (false, None, 1));
}

#[test]
fn saved_bolt_call_round_trips() {
    let text = bolt_plan(
        "class = \"java.lang.String\"\ncontent = \"1\"\nversion = \"v2-crc\"\ntimeout = \"none\"\ndeadline = \"2s\"\nin_flight = 3",
    );
    let first = plan(&text);
    let typed = spec::read(&text).expect("readable");
    let saved = typed.with_defaults(&first).to_toml().expect("writable");
    assert_eq!(plan(&saved).call, first.call, "{saved}");
}

#[test]
fn bolt_call_errors_name_key() {
    for (call, needle) in [
        ("method = \"c\"", "`call.bolt.service`: missing"),
        ("service = \"a\"", "`call.bolt.method`: missing"),
        (
            "service = \"a\"\nmethod = \"b\"\nversion = \"v3\"",
            "`call.bolt.version`: `v3` is unknown",
        ),
        (
            "service = \"a\"\nmethod = \"b\"\nin_flight = 0",
            "`call.bolt.in_flight`: 0",
        ),
        (
            "service = \"a\"\nmethod = \"b\"\nheartbeat = \"0s\"",
            "`call.bolt.heartbeat`: 0",
        ),
        (
            "service = \"a\"\nmethod = \"b\"\ntimeout = \"0s\"",
            "`call.bolt.timeout`: a timeout of 0",
        ),
        (
            "service = \"a\"\nmethod = \"b\"\ncodec = 11",
            "`call.bolt.codec`: only for raw",
        ),
        (
            "service = \"a\"\nmethod = \"b\"\nclass = \"c\"\ncontent = \"1\"",
            "`call.bolt.service`: can't be combined",
        ),
        ("content = \"1\"", "`call.bolt.class`: missing"),
        ("class = \"a\"", "`call.bolt.content`: missing"),
        (
            "service = \"a\"\nmethod = \"b\"\nmax_content = \"4GiB\"",
            "`call.bolt.max_content`: out of range",
        ),
        (
            "service = \"a\"\nmethod = \"b\"\narguments = \"[\\\"{{seq}}\\\"]\"",
            "`call.bolt.arguments`: `{{seq}}`: fields are not supported",
        ),
    ] {
        let problems = problems(&bolt_plan(call));
        assert!(
            problems.iter().any(|p| p.contains(needle)),
            "{call}: {problems:?}"
        );
    }
}

#[test]
fn foreign_url_schemes_suggest_ours() {
    register_protocols();
    for (url, needle) in [
        ("sofarpc://a:1", "write sofa://a:1"),
        ("bolt://a:1", "write sofa://a:1"),
        ("mtls://a:1", "write tls://a:1"),
    ] {
        let error = spec::parse_target(url).expect_err(url);
        assert!(error.contains(needle), "{url}: {error}");
    }
    let secured = |url: &str| spec::parse_target(url).map(|(_, secured)| secured);
    assert_eq!(secured("sofas://localhost:12200"), Ok(true));
    assert_eq!(secured("tls://a:1"), Ok(true));
    assert_eq!(secured("tcp://a:1"), Ok(false));
    assert_eq!(spec::section_for_url("tls+unix:/a"), Some("hold"));
}

#[test]
fn non_utf8_path_is_rejected() {
    let named = PluginOptions {
        codec: Some(OsString::from_vec(vec![0xff]).into()),
        ..PluginOptions::default()
    };
    let problem = CallSpec::from_section(&named).expect_err("no text");
    assert_eq!(problem.key, "call.plugin");
}

/// A lane's scheme decides whether it has the plan's TLS.
#[test]
fn lane_scheme_decides_tls() {
    register_protocols();
    let text = "target = \"grpcs://a:1\"\n[tls]\nca = \"ca\"\n[call.grpc]\nmethod = \"a.B/C\"\n[load]\nrate = \"1/s\"\nduration = \"1s\"\n\
                [lanes.secured]\ntarget = \"plugins://b:1\"\ncall.plugin.codec = \"x.so\"\n\
                [lanes.socket]\ntarget = \"grpc+unix:/s\"\n";
    let lanes = spec::read(text).expect("readable").lane_specs();
    let lanes = lanes.expect("lanes").into_iter();
    let has_tls: Vec<(String, bool)> = lanes.map(|l| (l.name, l.spec.tls.is_some())).collect();
    assert_eq!(
        has_tls,
        [("secured".to_owned(), true), ("socket".to_owned(), false)]
    );
}

#[test]
fn fetch_path_from_url_or_section() {
    let fetched = |target: &str, section: &str| {
        let text = format!(
            "target = \"{target}\"\n[load]\nclients = 1\ncalls = 1\n[call.fetch]\n{section}\n"
        );
        let plan = plan(&text);
        let call: &HttpCall = plan.call.downcast_ref().expect("a file");
        (call.path.clone(), call.expect_size)
    };
    assert_eq!(
        fetched("https://a/bytes/64KiB", ""),
        ("/bytes/64KiB".into(), Some(65_536))
    );
    assert_eq!(fetched("https://a:1", ""), ("/".into(), None));
    assert_eq!(
        fetched("http://a:1/", "path = \"/x?y=1\"\nsize = \"3B\""),
        ("/x?y=1".into(), Some(3))
    );
    // The plan in the run directory resolves to the same plan.
    let text = "target = \"https://a/bytes/1000\"\n[load]\nclients = 1\ncalls = 1\n[call.fetch]\n";
    let typed = spec::read(text).expect("readable");
    let kept = typed.with_defaults(&plan(text)).to_toml().expect("toml");
    assert_eq!(plan(&kept).call, plan(text).call);
}

#[test]
fn fetch_errors_suggest_fix() {
    let load = "[load]\nclients = 1\ncalls = 1\n";
    for (text, expected) in [
        (
            "target = \"https://a/x\"\n[call.fetch]\npath = \"/y\"\n",
            "`call.fetch.path`: `/y` differs from the target's path `/x`: use one of the two",
        ),
        (
            "target = \"https://a/x\"\n[call.fetch]\nper_connection = 0\n",
            "`call.fetch.per_connection`: a connection must fetch at least 1 file: use 1 or more, or leave it out",
        ),
        (
            "target = \"https://a/bytes/5GiB\"\n[call.fetch]\n",
            "`call.fetch.size`: too large: at most 4294967295B",
        ),
        (
            "target = \"https://a/x y\"\n[call.fetch]\n",
            "`call.fetch.path`: `/x y` is not a path: write `/x%20y`, percent-encoded",
        ),
        (
            "target = \"https://a:1\"\n",
            "`call`: missing: a [call.http] section says what to call",
        ),
        (
            "target = \"https://a:1\"\n[call.grpc]\nmethod = \"a.B/C\"\n[call.fetch]\n",
            "`call.fetch`: can't be combined with call.grpc: a plan calls one thing",
        ),
    ] {
        let problems = problems(&format!("{text}{load}"));
        assert_eq!(problems, [expected]);
    }
}

#[test]
fn every_file_is_fetched_alike() {
    let fetch = "target = \"http://h:1\"\n[rows]\nfile = \"users.csv\"\n[call.fetch]\n[load]\nrate = \"1/s\"\ncalls = 1\n";
    let varying = problems(fetch).join("; ");
    assert!(
        varying.contains("`rows`: only for [call.grpc]"),
        "{varying}"
    );
    let twice = "target = \"http://h:1\"\n[call.fetch]\nper_connection = 2\n[load]\nclients = 1\ncalls = 1\ncalls_per_connection = 3\n";
    let doubled = problems(twice).join("; ");
    assert!(
        doubled.contains("3, and call.fetch.per_connection is 2"),
        "{doubled}"
    );
}

#[test]
fn openssl_requires_files_on_new_connections() {
    register_protocols();
    let of = |call: &str, ladder: &str| {
        let text = format!(
            "[call.{call}\n[load]\nrate = \"5/s\"\n[ladder]\nlibrary = [\"rustls\", \"openssl\"]\n{ladder}"
        );
        spec::read(&text).expect("a plan").rungs()
    };
    let all = "serve = [\"files\"]\nsize = [\"1KiB\"]\ntls = [\"server\"]\nconnection = [\"new\"]";
    let found = of("fetch]", all).unwrap();
    assert_eq!(found[1].library, TlsLibrary::OpenSsl);
    assert!(
        found[1].name.contains("library openssl"),
        "{}",
        found[1].name
    );
    for (from, to, why) in [
        (
            "serve = [\"files\"]",
            "serve = [\"score\"]",
            "own file server",
        ),
        ("serve = [\"files\"]", "", "own file server"),
        ("\"server\"", "\"off\"", "is plaintext"),
        ("size = [\"1KiB\"]", "", "only files generated for it"),
        ("\"new\"", "\"reused\"", "after a file"),
    ] {
        let problem = of("fetch]", &all.replace(from, to)).unwrap_err();
        assert!(problem.message.contains(why), "{why}: {problem:?}");
    }
    let problem = of(
        "grpc]\nmethod = \"a.B/C\"",
        all.split_once("size").unwrap().0,
    )
    .unwrap_err();
    assert!(
        problem.message.contains("it needs [call.fetch]"),
        "{problem:?}"
    );
}

#[test]
fn size_selects_file_and_caps_clients() {
    register_protocols();
    let text = "target = \"https://h:1/x\"\n[call.fetch]\n[load]\nclients = 16\n[ladder]\nsize = [\"1KiB\", \"32MiB\", \"512MiB\"]";
    let found = spec::read(text).unwrap().rungs().unwrap();
    let seen: Vec<_> = found
        .iter()
        .map(|r| {
            let (path, _) = r.spec.fetched_file().unwrap();
            (r.name.as_str(), path.to_owned(), r.spec.load.clients)
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("size 1KiB", "/bytes/1024".to_owned(), Some(16)),
            ("size 32MiB", "/bytes/33554432".to_owned(), Some(2)),
            ("size 512MiB", "/bytes/536870912".to_owned(), Some(1)),
        ]
    );
    assert_eq!(found[0].spec.target.as_deref(), Some("https://h:1"));
    let other = "[call.grpc]\n[load]\nclients = 1\n[ladder]\nsize = [\"1KiB\", \"2KiB\"]";
    let wrong = spec::read(other).unwrap().rungs().unwrap_err();
    assert!(wrong.to_string().contains("needs [call.fetch]"), "{wrong}");
    let wrong = spec::read(&text.replace("32MiB", "32"))
        .unwrap()
        .rungs()
        .unwrap_err();
    assert!(wrong.to_string().contains("has no unit"), "{wrong}");
}
