//! Third-party proxies as rungs: Debian's HAProxy and NGINX, with configurations written by the
//! ladder.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod proxy_list;

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_model::comparisons::ladder::{LadderRecord, SliceResult};
use plimsoll_model::runs::run::Run;

use crate::support::peers::python;
use crate::support::ports::free_port;
use crate::support::{MAX_WAIT, Place, Server, stderr_of, text};

/// The calls, by what a proxy must understand of them, and the words of the server for each.
const CALLS: [(&str, &str, &str); 5] = [
    ("http1", "[call.http]\npath = \"/bytes/1KiB\"", "http"),
    (
        "http2",
        "[call.http]\nversion = \"2\"\npath = \"/bytes/1KiB\"",
        "http",
    ),
    (
        "grpc",
        "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = { json = \"[0.1, 0.2]\" }",
        "score",
    ),
    (
        "tcp",
        "[call.bolt]\nservice = \"com.alipay.test.TestService:1.0\"\nmethod = \"echoStr\"\narguments = '[\"hello\"]'",
        "bolt",
    ),
    (
        "llm",
        "[call.http]\nmethod = \"POST\"\npath = \"/v1/chat/completions\"\nstream = \"openai\"\n\
         body = '{\"model\": \"m\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}'",
        "llm --token-delay 5ms --tokens 4",
    ),
];

/// Returns the keys of a ladder that start the server of one of [`CALLS`]. Over HTTP/1.1, an answer that takes some
/// time occupies its connection.
fn served(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let connections = if words.len() > 1 {
        "\"load.connections\" = [16]\n"
    } else {
        ""
    };
    format!("serve = {words:?}\n{connections}")
}

/// 200 calls, distributed to the rungs in batches of five.
const LOAD: &str = "[load]\nrate = \"400/s\"\nwarmup = \"0s\"\nduration = \"500ms\"\n";

fn write(place: &Place, name: &str, call: &str, load: &str, ladder: &str) {
    let plan = format!("{call}\n{load}[ladder]\nparts = [\"none\"]\n{ladder}\n");
    fs::write(place.path(name), plan).unwrap();
}

#[track_caller]
fn run_ladder_plan(place: &Place, name: &str, more: &[&str]) -> (String, LadderRecord) {
    let plan = format!("{name}.toml");
    let out = place.expect(0, &[&["ladder", &plan, "--out", name], more].concat());
    (out, LadderRecord::load(&place.path(name)).unwrap())
}

#[track_caller]
fn assert_all_ok(place: &Place, name: &str, record: &LadderRecord, each: u64) {
    for rung in &record.rungs {
        for slice in &rung.slices {
            let run = Run::load(&place.path(name).join(&slice.run)).unwrap();
            let count = &run.summary.count_check;
            assert_eq!((count.ok, count.errors), (each, 0), "{name}: {rung:?}");
            let is_secured = rung.settings["tls"] != "off";
            assert_eq!(run.header.tls.is_some(), is_secured, "{name}: {rung:?}");
        }
    }
}

/// Checks the tokens of a slice, which the server sends 5 ms apart: a proxy that buffered answers would send them all at
/// once.
#[track_caller]
fn assert_tokens_are_passed_on_at_once(name: &str, slice: &SliceResult) {
    assert_eq!(slice.tokens.is_some(), name == "llm", "{name}: {slice:?}");
    let Some(tokens) = slice.tokens else {
        return;
    };
    assert!(
        tokens.first_p50_us.is_some_and(|us| us >= 5_000.0),
        "{slice:?}"
    );
    assert!(
        tokens.per_token_p50_us.is_some_and(|us| us > 2_500.0),
        "{slice:?}"
    );
}

/// Plaintext and mutual TLS on both sides for every call; for one also TLS that ends at the proxy,
/// passes through it, or begins there.
#[test]
fn proxies_carry_protocols_with_every_tls() {
    for (name, call, server) in CALLS {
        let place = Place::new();
        let more = "{ tls = \"server\", upstream_tls = \"off\" },\n\
                    { tls = \"server\", upstream_tls = \"passed\" },\n\
                    { tls = \"off\", upstream_tls = \"mutual\" },";
        let more = if name == "grpc" { more } else { "" };
        let ladder = format!(
            "batch = 5\n{}via = [\"haproxy\", \"nginx\"]\n\
             rungs = [\n{{ tls = \"off\" }},\n{{ tls = \"mutual\" }},\n{more}\n]",
            served(server)
        );
        write(&place, &format!("{name}.toml"), call, LOAD, &ladder);
        let (out, record) = run_ladder_plan(&place, name, &[]);
        let rungs = if more.is_empty() { 4 } else { 10 };
        assert_eq!(
            (record.rungs.len(), record.skipped.len()),
            (rungs, 0),
            "{out}"
        );
        assert_all_ok(&place, name, &record, 200 / rungs as u64);
        for (nth, rung) in record.rungs.iter().enumerate() {
            let slice = &rung.slices[0];
            assert!(
                slice.sidecar_cpu_us_per_call.is_some_and(|us| us > 0.0),
                "{rung:?}"
            );
            assert!(
                slice
                    .memory
                    .proxy_rss_bytes_max
                    .is_some_and(|bytes| bytes > 1_000_000)
            );
            assert_tokens_are_passed_on_at_once(name, slice);
            let title = ["HAProxy 2", "NGINX 1"][nth % 2];
            assert!(
                rung.proxy.as_ref().is_some_and(|it| it.starts_with(title)),
                "{rung:?}"
            );
        }
        let file = place.path(name).join("proxies/2-nginx/nginx.conf");
        assert!(
            fs::read_to_string(file)
                .unwrap()
                .contains("worker_processes 1;")
        );
        assert!(
            place
                .path(name)
                .join("proxies/1-haproxy/proxy.log")
                .exists()
        );
        // Keys in a run's folder would be shared with it.
        assert!(
            !place
                .path(name)
                .join("proxies/3-haproxy/server.pem")
                .exists()
        );
        assert!(out.contains("proxy CPU a call"), "{out}");
        assert_eq!(out.contains("first token (p50)"), name == "llm", "{out}");
    }
}

/// A plaintext server of the plan: the proxies terminate the load's TLS.
#[test]
fn proxies_pass_websockets_to_own_server() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "ws_server.py"));
    let call = format!(
        "target = \"ws://{}/\"\n[call.http]\nbody = \"hello\"\nwebsocket = {{}}",
        server.address()
    );
    let ladder = "batch = 5\nvia = [\"haproxy\", \"nginx\"]\nrungs = [\n{ tls = \"off\" },\n\
                  { tls = \"mutual\", upstream_tls = \"off\" },\n]";
    write(&place, "socket.toml", &call, LOAD, ladder);
    let (out, record) = run_ladder_plan(&place, "socket", &[]);
    assert_eq!((record.rungs.len(), record.skipped.len()), (4, 0), "{out}");
    assert_all_ok(&place, "socket", &record, 50);
}

#[test]
fn missing_proxy_leaves_other_rungs() {
    let place = Place::new();
    let (_, call, _) = CALLS[2];
    // 100 rounds of three rungs, in replicates of half a second.
    let load = "[load]\nrate = \"400/s\"\nwarmup = \"0s\"\nduration = \"3s\"\n";
    write(
        &place,
        "plan.toml",
        call,
        load,
        "batch = 4\nserve = [\"score\"]",
    );
    // PATH is not set; programs in Debian's other folders are still found.
    let via = ["--via", "direct,caddy,haproxy"];
    let output = place.run(&[&["ladder", "plan.toml", "--out", "plan"][..], &via].concat());
    let err = stderr_of(&output);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let why =
        "via caddy is not measured: Caddy is not on PATH or in /usr/sbin: apt-get install caddy";
    assert!(err.contains(why), "{err}");
    let record = LadderRecord::load(&place.path("plan")).unwrap();
    let names: Vec<&str> = record.rungs.iter().map(|rung| rung.name.as_str()).collect();
    assert_eq!(names, ["via direct", "via haproxy"]);
    assert_eq!(record.skipped[0].name, "via caddy");
    // Each replicate has a proxy of its own.
    assert_eq!(record.rungs[1].slices.len(), 6);
    for slice in &record.rungs[1].slices {
        assert_eq!(slice.errors, 0, "{slice:?}");
        assert!(slice.sidecar_cpu_us_per_call.is_some_and(|us| us > 0.0));
    }
    let only = ["ladder", "plan.toml", "--via", "caddy,envoy"];
    let output = place.run(&only);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    let unknown = ["ladder", "plan.toml", "--via", "direct,squid"];
    let err = stderr_of(&place.run(&unknown));
    assert!(err.contains("`squid` is unknown: use \"direct\""), "{err}");
}

/// Returns the processes of `program` whose arguments name a file in the place.
fn pids_of(place: &Place, program: &str) -> Vec<i32> {
    let folder = place.path("").display().to_string();
    let named = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.split('\0')
            .next()
            .is_some_and(|first| first.ends_with(program))
            && line.contains(folder.trim_end_matches('/'))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(named).collect()
}

#[test]
fn dying_proxy_is_named_and_others_continue() {
    let place = Place::new();
    let load = "[load]\nrate = \"100/s\"\nwarmup = \"0s\"\nduration = \"3s\"\n";
    let ladder = "batch = 20\nserve = [\"score\"]\nvia = [\"direct\", \"haproxy\", \"nginx\"]";
    write(&place, "plan.toml", CALLS[2].1, load, ladder);
    let mut command =
        place.command(&["ladder", "plan.toml", "--out", "plan", "--progress", "none"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // The interval of the first second is written: the load continues for two more.
    let intervals = place.path("plan/rung-1/intervals.jsonl");
    let end = Instant::now() + MAX_WAIT;
    while fs::metadata(&intervals).map_or(0, |file| file.len()) == 0 {
        assert!(Instant::now() < end, "no load");
        thread::sleep(Duration::from_millis(20));
    }
    let pids = pids_of(&place, "haproxy");
    assert_eq!(pids.len(), 1, "{pids:?}");
    let killed = Command::new("kill")
        .args(["-KILL", &pids[0].to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(
        err.contains("via haproxy is skipped, and the other rungs continue: HAProxy 2"),
        "{err}"
    );
    let record = LadderRecord::load(&place.path("plan")).unwrap();
    let names: Vec<&str> = record.rungs.iter().map(|rung| rung.name.as_str()).collect();
    assert_eq!(names, ["via direct", "via nginx"]);
    assert!(
        record.skipped[0].reason.contains("signal 9"),
        "{:?}",
        record.skipped
    );
    for rung in &record.rungs {
        assert_eq!(rung.slices[0].errors, 0, "{rung:?}");
        assert!(rung.slices[0].p50_us.is_some(), "{rung:?}");
    }
    // The processes that were not killed are gone, too.
    assert_eq!(pids_of(&place, "nginx"), Vec::<i32>::new());
}

#[test]
fn own_proxy_replaces_built_in_one() {
    let place = Place::new();
    let (listen, upstream) = (free_port(), free_port());
    let config = format!(
        "defaults\n mode http\n timeout connect 10s\n timeout client 1h\n timeout server 1h\n\
         listen own\n bind 127.0.0.1:{listen} proto h2\n server s 127.0.0.1:{upstream} proto h2\n"
    );
    fs::write(place.path("own.cfg"), &config).unwrap();
    let ladder = |command: &str| {
        format!(
            "batch = 5\nserve = [\"score\"]\nvia = [\"direct\", {{ command = [{command}], \
             listen = \"127.0.0.1:{listen}\", upstream = \"127.0.0.1:{upstream}\" }}]"
        )
    };
    let haproxy = "\"/usr/sbin/haproxy\", \"-db\", \"-f\", \"own.cfg\"";
    write(&place, "own.toml", CALLS[2].1, LOAD, &ladder(haproxy));
    let (out, record) = run_ladder_plan(&place, "own", &[]);
    assert_eq!(record.rungs[1].name, "via /usr/sbin/haproxy", "{out}");
    for rung in &record.rungs {
        assert_eq!(rung.slices[0].errors, 0, "{rung:?}");
    }
    // Configuration errors are reported with the program's own message, which names the line.
    fs::write(place.path("own.cfg"), format!("{config} nonsense 1\n")).unwrap();
    fs::write(place.path("own.conf"), "events {}\nnonsense 1;\n").unwrap();
    let nginx = format!(
        "\"/usr/sbin/nginx\", \"-p\", \".\", \"-e\", \"stderr\", \"-c\", \"{}\"",
        place.path("own.conf").display()
    );
    for (command, said) in [
        (haproxy, "[own.cfg:9]"),
        (nginx.as_str(), "own.conf:2"),
        ("\"/nowhere/proxy\"", "can't start /nowhere/proxy"),
    ] {
        write(&place, "bad.toml", CALLS[2].1, LOAD, &ladder(command));
        let output = place.run(&["ladder", "bad.toml", "--out", "bad"]);
        // Long lines of messages are wrapped.
        let err: String = stderr_of(&output).split_whitespace().collect();
        assert_eq!(output.status.code(), Some(1), "{err}");
        let said: String = said.split_whitespace().collect();
        assert!(err.replace('│', "").contains(&said), "{err}");
        let _ = fs::remove_dir_all(place.path("bad"));
    }
}

/// A chain of two proxies, as in a service mesh: mutual TLS between them, plaintext or TLS at its ends. One of them is
/// defined in a folder of the user's.
#[test]
fn chains_carry_calls_through_every_proxy() {
    let place = Place::new();
    let definition = place.expect(0, &["proxies", "--definition", "haproxy"]);
    fs::create_dir(place.path("proxies")).unwrap();
    let mine = definition.replacen("\"HAProxy\"", "\"Mine\"", 1);
    let place_in_chain = "config = '''\n# {{ same_before }} before, {{ same_after }} after, model: {{ calls_model }}\n";
    let mine = mine.replacen("config = '''\n", place_in_chain, 1);
    fs::write(place.path("proxies/mine.toml"), mine).unwrap();
    for (name, call, server) in CALLS {
        let ladder = format!(
            "batch = 5\n{}proxies = \"proxies\"\n\
             rungs = [\n{{ tls = \"off\", via = \"mine+nginx\" }},\n{{ via = \"nginx+mine\", tls = \"mutual\" }},\n\
             {{ tls = \"off\", via = \"mine+mine\", between_tls = \"off\", proxy_workers = 2 }},\n\
             {{ via = \"nginx+mine+nginx\", tls = \"server\", upstream_tls = \"off\" }},\n]",
            served(server)
        );
        write(&place, &format!("{name}.toml"), call, LOAD, &ladder);
        let (out, record) = run_ladder_plan(&place, name, &[]);
        assert_eq!((record.rungs.len(), record.skipped.len()), (4, 0), "{out}");
        assert_all_ok(&place, name, &record, 50);
        let described = record.rungs[0].proxy.as_deref().unwrap();
        let (first, second) = described.split_once(" + ").unwrap();
        assert!(
            first.starts_with("Mine 2") && second.starts_with("NGINX 1"),
            "{described}"
        );
        let config =
            |file: &str| fs::read_to_string(place.path(name).join("proxies").join(file)).unwrap();
        // The first speaks mutual TLS to the second, and plaintext at its other end.
        let near = config("1-1-mine/haproxy.cfg");
        assert!(
            !near.contains("bind 127.0.0.1:0 ssl") && near.contains(" crt "),
            "{near}"
        );
        let far = config("1-2-nginx/nginx.conf");
        assert!(
            far.contains("ssl_verify_client on;") && !far.contains("_ssl_certificate "),
            "{far}"
        );
        assert!(config("3-1-mine/haproxy.cfg").contains("nbthread 2"));
        let calls_model = if name == "llm" { "True" } else { "False" };
        for (file, neighbours) in [
            ("2-2-mine", "0 before, 0 after"),
            ("3-1-mine", "0 before, 1 after"),
            ("3-2-mine", "1 before, 0 after"),
        ] {
            let text = config(&format!("{file}/haproxy.cfg"));
            let said = format!("# {neighbours}, model: {calls_model}\n");
            assert!(text.contains(&said), "{said}: {text}");
        }
    }
    let err = stderr_of(&place.run(&["ladder", "grpc.toml", "--proxies", "nowhere"]));
    assert!(err.contains("`mine` is unknown"), "{err}");
}

/// The prices of single layers, and what a chain of them is predicted to add.
#[test]
fn prices_of_layers_predict_chains() {
    let place = Place::new();
    let load = "[load]\nrate = \"400/s\"\nwarmup = \"0s\"\nduration = \"4s\"\n";
    let ladder = "batch = 4\nserve = [\"score\"]\nrungs = [\n{ tls = \"off\" },\n{ tls = \"mutual\" },\n\
                  { tls = \"off\", via = \"haproxy\" },\n{ tls = \"off\", via = \"nginx\" },\n]";
    write(&place, "prices.toml", CALLS[2].1, load, ladder);
    run_ladder_plan(&place, "prices", &[]);
    let layers = place.expect_json(0, &["price", "prices", "--json"]);
    let layers = layers["predictions"].as_array().unwrap();
    let names: Vec<&str> = layers
        .iter()
        .map(|one| one["chain"][0].as_str().unwrap())
        .collect();
    assert_eq!(names, ["mtls", "haproxy", "nginx"]);
    // Layers without a proxy have no CPU time of proxies.
    let added = |prediction: &serde_json::Value, metric: &str| {
        let metrics = prediction["metrics"].as_array().unwrap();
        let cost = metrics.iter().find(|cost| cost["metric"] == metric)?;
        Some(["added", "low", "high"].map(|key| cost[key].as_f64().unwrap()))
    };
    let chain = [
        "price",
        "prices",
        "--chain",
        "haproxy,mtls,nginx",
        "--rate",
        "1000/s",
        "--json",
    ];
    let predicted = &place.expect_json(0, &chain)["predictions"][0];
    for metric in ["p50", "client_cpu", "sidecar_cpu"] {
        let each = layers.iter().filter_map(|layer| added(layer, metric));
        let sum: f64 = each.map(|[added, ..]| added).sum();
        let [whole, low, high] = added(predicted, metric).unwrap();
        assert!((whole - sum).abs() < 1e-6, "{metric}: {whole} {sum}");
        assert!(low <= whole && whole <= high, "{metric}: {low} {high}");
    }
    let proxies = added(predicted, "sidecar_cpu").unwrap()[0];
    let cores = predicted["cores"].as_array().unwrap();
    let needed = cores.iter().find(|need| need["user"] == "proxies").unwrap();
    assert!((needed["cores"].as_f64().unwrap() - proxies / 1000.0).abs() < 1e-9);
    let text = place.expect(
        0,
        &[
            "price",
            "prices",
            "--chain",
            "haproxy,nginx",
            "--rate",
            "1000/s",
        ],
    );
    for part in [
        "haproxy + nginx, added to tls off (predicted from 2 prices",
        "proxies need",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let unknown = place.run(&["price", "prices", "--chain", "envoy"]);
    assert_eq!(unknown.status.code(), Some(2));
    let err = stderr_of(&unknown);
    assert!(
        err.contains("`envoy` is not a layer of this list: it has mtls, haproxy, nginx"),
        "{err}"
    );
}
