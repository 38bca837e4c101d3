//! Tests of loads with recorded arrivals: their totals, what calls take from the recorded lines, and what is
//! rejected.

use std::path::PathBuf;

use plimsoll_model::schedule::Schedule;
use plimsoll_model::spec::Spec;

use super::*;

/// Four requests in two seconds, two of them in the first.
const LOG: &str = concat!(
    "192.0.2.7 - - [28/Nov/2026:14:00:00 +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"curl/8\"\n",
    "192.0.2.7 - - [28/Nov/2026:14:00:00 +0000] \"GET /b?c=1 HTTP/1.1\" 200 1 \"-\" \"curl/8\"\n",
    "192.0.2.9 - - [28/Nov/2026:14:00:01 +0000] \"POST /d HTTP/1.1\" 200 1 \"-\" \"curl/8\"\n",
    "192.0.2.9 - - [28/Nov/2026:14:00:02 +0000] \"GET /e HTTP/1.1\" 200 1 \"-\" \"curl/8\"\n",
);

struct LogFile {
    dir: tempfile::TempDir,
}

impl LogFile {
    fn new(text: &str) -> LogFile {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("log"), text).expect("written");
        LogFile { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Returns a plan that replays the log, with these keys of the load and the call.
    fn plan(&self, load: &str, call: &str) -> String {
        let path = self.path();
        format!("target = \"http://a:1\"\n[load]\nreplay = {path:?}\n{load}\n[call.http]\n{call}\n")
    }

    fn spec(&self, load: &str, call: &str) -> Spec {
        register_protocols();
        spec::read(&self.plan(load, call)).expect("readable")
    }

    fn resolve(&self, load: &str, call: &str) -> Plan {
        spec::resolve(&self.spec(load, call), &FileContext).expect("right")
    }
}

/// Returns the paths of the first calls.
fn paths(plan: &Plan, calls: u64) -> Vec<String> {
    let call = plan.call.downcast_ref::<HttpCall>().expect("HTTP");
    let varying = call.varying.as_ref().expect("varying");
    let path = varying.path.as_ref().expect("a path");
    let of = |number| {
        let mut text = Vec::new();
        path.write(&varying.variation.render_context(number, 0, 0), &mut text);
        String::from_utf8(text).expect("UTF-8")
    };
    (0..calls).map(of).collect()
}

fn times_ms(plan: &Plan) -> Vec<u64> {
    let schedule = Schedule::new(&plan.load, plan.seed);
    schedule.share(0, 1).map(|a| a.at / 1_000_000).collect()
}

#[test]
fn replayed_calls_have_paths_and_times_of_lines() {
    let log = LogFile::new(LOG);
    let plan = log.resolve("filter = [\"method=GET\"]\nspeed = \"2x\"", "");
    assert_eq!(times_ms(&plan), [0, 250, 1_000]);
    assert_eq!(paths(&plan, 4), ["/a", "/b?c=1", "/e", "/a"]);
    let again = log.resolve("filter = [\"method=GET\"]\nloop = true\ncalls = 7", "");
    assert_eq!(
        times_ms(&again),
        [0, 500, 2_000, 3_000, 3_500, 5_000, 6_000]
    );
    let parts = (0..3).flat_map(|n| Schedule::new(&again.load, 1).share(n, 3));
    let mut parts: Vec<(u64, u64)> = parts.map(|a| (a.number, a.at / 1_000_000)).collect();
    parts.sort_unstable();
    let whole = (0..).zip(times_ms(&again)).collect::<Vec<_>>();
    assert_eq!(parts, whole);
}

#[test]
fn replay_begins_with_warmup_and_ends_after_duration() {
    let log = LogFile::new("0\n0.5\n1\n1.5\n2\n2.5\n");
    let plan = log.resolve("warmup = \"1s\"\nduration = \"1s\"", "path = \"/x\"");
    assert_eq!(times_ms(&plan), [0, 500, 1_000, 1_500]);
    let schedule = Schedule::new(&plan.load, 1);
    let stages: Vec<u8> = schedule.share(0, 1).map(|a| a.stage).collect();
    assert_eq!(stages, [0, 0, 1, 1]);
    assert_eq!(schedule.end(), Some(2_000_000_000));
    let counted = log.resolve("warmup = \"1s\"\ncalls = 1", "path = \"/x\"");
    assert_eq!(times_ms(&counted), [0, 500, 1_000]);
    // The single call's interval lasts until the next recorded arrival.
    assert_eq!(Schedule::new(&counted.load, 1).end(), Some(1_500_000_000));
}

#[test]
fn saved_replay_refuses_changed_file() {
    let log = LogFile::new(LOG);
    let load = "filter = [\"method=GET\"]";
    let plan = log.resolve(load, "");
    let saved = log.spec(load, "").with_defaults(&plan).to_toml().unwrap();
    let again = spec::resolve(&spec::read(&saved).unwrap(), &FileContext).expect("the same file");
    assert_eq!(again.load.recording, plan.load.recording);
    fs::write(log.path(), LOG.replace("/e", "/f")).unwrap();
    let problems = problems(&saved);
    assert!(
        problems.iter().any(|p| p.contains("has changed since")),
        "{problems:?}"
    );
}

#[test]
fn replay_errors_name_key() {
    let log = LogFile::new(LOG);
    for (load, call, needle) in [
        ("", "", "`load.replay`: the file has requests of POST"),
        (
            "rate = \"1/s\"",
            "path = \"/\"",
            "`load.rate`: can't be combined with load.replay",
        ),
        (
            "clients = 3",
            "path = \"/\"",
            "`load.clients`: can't be combined with load.replay",
        ),
        (
            "arrivals = \"poisson\"",
            "path = \"/\"",
            "`load.arrivals`: can't be combined with load.replay",
        ),
        (
            "speed = \"fast\"",
            "path = \"/\"",
            "`load.speed`: `fast` is not a speed",
        ),
        (
            "sample = \"0%\"",
            "path = \"/\"",
            "`load.sample`: `0%` is not a share",
        ),
        (
            "window = \"noon\"",
            "path = \"/\"",
            "`load.window`: `noon` is not a window",
        ),
        (
            "window = \"15:00..16:00\"",
            "path = \"/\"",
            "`load.replay`: ",
        ),
        (
            "filter = [\"GET\"]",
            "path = \"/\"",
            "`load.filter.0`: `GET` is not a filter",
        ),
        (
            "filter = [\"verb=GET\"]",
            "path = \"/\"",
            "but it has client, time, method",
        ),
        ("duration = \"1h\"", "path = \"/\"", "`load.duration`: "),
        ("warmup = \"1h\"", "path = \"/\"", "`load.warmup`: "),
        ("calls = 99", "path = \"/\"", "`load.calls`: "),
        (
            "loop = true",
            "path = \"/\"",
            "`load.loop`: the file would be replayed for ever",
        ),
        (
            "replay_format = \"xml\"",
            "path = \"/\"",
            "`load.replay_format`: ",
        ),
        ("replay_format = \"csv\"", "path = \"/\"", "`load.replay`: "),
    ] {
        let problems = problems(&log.plan(load, call));
        assert!(
            problems.iter().any(|p| p.contains(needle)),
            "{load}: {problems:?}"
        );
    }
    let alone = "target = \"http://a:1/\"\n[load]\nrate = \"1/s\"\nduration = \"1s\"\nspeed = \"2x\"\n[call.http]\n";
    assert_eq!(
        problems(alone),
        ["`load.speed`: for recorded arrivals: name their file (load.replay)"]
    );
    let shape = alone.replace("speed = \"2x\"", "arrivals = { gamma = 0.0 }");
    assert!(problems(&shape)[0].starts_with("`load.arrivals`: 0 is not a useful shape"));
    let both = alone.replace("speed = \"2x\"", "arrivals = { gamma = 1.0, file = \"x\" }");
    assert!(
        problems(&both)
            .iter()
            .any(|p| p.starts_with("`load.arrivals`"))
    );
}

/// Requests of several methods, whose first line has neither a body nor header fields.
const REQUESTS: &str = concat!(
    "{\"time\":0,\"method\":\"GET\",\"path\":\"/a\"}\n",
    "{\"time\":1,\"method\":\"POST\",\"path\":\"/b\",\"body\":{\"n\":1},\"headers\":{\"X-A\":\"1\"}}\n",
    "{\"time\":2,\"method\":\"DELETE\",\"path\":\"/c\"}\n",
);

#[test]
fn lines_give_methods_bodies_and_fields() {
    let log = LogFile::new(REQUESTS);
    let plan = log.resolve("", "");
    assert_eq!(paths(&plan, 3), ["/a", "/b", "/c"]);
    let call = plan.call.downcast_ref::<HttpCall>().expect("HTTP");
    assert_eq!(call.method, "{{row.method}}");
    let parts = call.replayed.as_ref().expect("parts of lines");
    let variation = &call.varying.as_ref().expect("varying").variation;
    let rendered = |template: &plimsoll_model::rows::template::Template, number| {
        let mut text = Vec::new();
        template.write(&variation.render_context(number, 0, 0), &mut text);
        String::from_utf8(text).expect("UTF-8")
    };
    let method = parts.method.as_ref().expect("methods");
    assert_eq!(
        [0, 1, 2].map(|n| rendered(method, n)),
        ["GET", "POST", "DELETE"]
    );
    let headers = parts.headers.as_ref().expect("fields");
    assert_eq!(
        [0, 1].map(|n| rendered(headers, n)),
        ["", "{\"X-A\":\"1\"}"]
    );
    // A saved plan is the same one.
    let saved = log.spec("", "").with_defaults(&plan).to_toml().unwrap();
    let again = spec::resolve(&spec::read(&saved).unwrap(), &FileContext).expect("right");
    assert_eq!(
        again.call.downcast_ref::<HttpCall>().expect("HTTP").method,
        call.method
    );
    let one = log.resolve("filter = [\"method=DELETE\"]", "");
    assert_eq!(
        one.call.downcast_ref::<HttpCall>().expect("HTTP").method,
        "DELETE"
    );
    let other = log.resolve("filter = [\"method!=POST\"]", "");
    let other = other.call.downcast_ref::<HttpCall>().expect("HTTP");
    assert!(
        other
            .replayed
            .as_ref()
            .is_some_and(|parts| parts.headers.is_none())
    );
}

#[test]
fn lines_that_would_be_changed_are_refused() {
    let head = "time,method,path,headers,body\n";
    for (lines, call, needle) in [
        (
            "0,GET,/a,,\n1,POST,/b,,\n",
            "",
            "`load.replay`: the file has requests of POST, and no column `body`",
        ),
        (
            "0,GET,/a,,x\n1,HEAD,/b,,\n",
            "",
            "`load.replay`: the file has requests of HEAD, whose answers have no body",
        ),
        (
            "0,get,/a,,x\n",
            "",
            "`load.replay`: column `method`: \"get\" is not a method",
        ),
        (
            "0,POST,/a,[],x\n",
            "",
            "`load.replay`: column `headers`, row 1: not a JSON object",
        ),
        (
            "0,POST,/a,,x\n1,PUT,/a,,x\n",
            "method = \"POST\"",
            "`load.replay`: the file has requests of PUT, and this call's method is POST",
        ),
        (
            "0,GET,/a,,x\n",
            "body = \"own\"",
            "`load.replay`: the file has requests of GET, and this call's method is POST",
        ),
    ] {
        let problems = problems(&LogFile::new(&format!("{head}{lines}")).plan("", call));
        assert!(
            problems.iter().any(|p| p.starts_with(needle)),
            "{lines}: {problems:?}"
        );
    }
}

#[test]
fn archives_and_cloudfront_logs_are_replayed() {
    let archive = r#"{"log":{"version":"1.2","entries":[
        {"startedDateTime":"2026-11-29T10:00:00.000Z","request":{"method":"GET","url":"https://a/x?y=1"},"response":{}},
        {"startedDateTime":"2026-11-29T10:00:00.250Z","request":{"method":"PUT","url":"https://a/z","postData":{"mimeType":"text/plain","text":"b"}}},
        {"startedDateTime":"2026-11-29T10:00:00.300Z","request":{"method":"GET","url":"ws://a/"}}]}}"#;
    let plan = LogFile::new(archive).resolve("", "");
    assert_eq!(times_ms(&plan), [0, 250]);
    assert_eq!(paths(&plan, 2), ["/x?y=1", "/z"]);
    let recording = plan.load.recording.as_ref().expect("a recording");
    assert_eq!(
        recording.notes()[1..],
        [
            "1 entry of LOG could not be read and was skipped (entry 3: it is no request of HTTP)"
                .replace("LOG", recording.file())
        ]
    );
    let log = "#Version: 1.0\n#Fields: date time c-ip cs-method cs(Host) cs-uri-stem sc-status cs-uri-query\n\
               2026-11-29\t10:00:00\t192.0.2.1\tGET\td1.cloudfront.net\t/a\t200\t-\n\
               2026-11-29\t10:00:01\t192.0.2.1\tGET\td1.cloudfront.net\t/b\t200\tq=1\n\
               #Fields: date time cs-uri-stem cs-method\n\
               2026-11-29\t10:00:02\t/c\tGET\n";
    let plan = LogFile::new(log).resolve("", "");
    assert_eq!(times_ms(&plan), [0, 1_000, 2_000]);
    assert_eq!(paths(&plan, 3), ["/a", "/b?q=1", "/c"]);
}

/// Requests to the target's own host are replayed if there are any, unless a filter chooses hosts.
#[test]
fn archives_are_replayed_by_target() {
    let archive = |own: &str| {
        format!(
            r#"{{"log":{{"version":"1.2","entries":[
            {{"startedDateTime":"2026-11-29T10:00:00.000Z","request":{{"method":"GET","url":"http://{own}/x"}}}},
            {{"startedDateTime":"2026-11-29T10:00:00.250Z","request":{{"method":"GET","url":"https://b/y"}}}}]}}}}"#
        )
    };
    let notes = |plan: &Plan| {
        let recording = plan.load.recording.as_ref().expect("a recording");
        recording.notes()[1..].join("\n")
    };
    let (of_target, of_others) = (LogFile::new(&archive("a:1")), LogFile::new(&archive("c")));
    let plan = of_target.resolve("", "");
    assert_eq!(
        (times_ms(&plan), paths(&plan, 1)),
        (vec![0], vec!["/x".to_owned()])
    );
    let told = notes(&plan);
    assert!(
        told.contains("other hosts than the target: b (1);"),
        "{told}"
    );
    let plan = of_target.resolve("filter = [\"host=b\"]", "");
    assert_eq!(paths(&plan, 1), ["/y"]);
    // Plans of earlier versions have the checksum of the requests to all hosts, and still replay these.
    let all = of_target.resolve("filter = [\"host!=c\"]", "");
    let checksum = all.load.recording.as_ref().expect("a recording").checksum();
    let plan = of_target.resolve(&format!("checksum = \"{checksum}\""), "");
    assert_eq!(paths(&plan, 2), ["/x", "/y"]);
    let plan = of_others.resolve("", "");
    assert_eq!(paths(&plan, 2), ["/x", "/y"]);
    let told = notes(&plan);
    assert!(
        told.contains("all are sent to one target: b (1), c (1);"),
        "{told}"
    );
}
