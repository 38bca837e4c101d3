//! Codec plugins in whole commands: loads, an echo server, sidecars, and errors for unusable
//! plugins.

use crate::built;
use crate::support;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use support::{CLIENT_TLS, Place, SERVER_TLS, Server, signal, stderr_of, text, wait};

/// A folder with both examples: `c.so` and `rust.so`.
fn place() -> Place {
    let place = Place::new();
    fs::rename(built::build_c_example(&place.path(".")), place.path("c.so")).expect("c.so");
    fs::copy(built::built_rust_example(), place.path("rust.so")).expect("rust.so");
    place
}

fn url(server: &Server) -> String {
    format!("plugin://127.0.0.1:{}", server.port)
}

fn serve(place: &Place, plugin: &str) -> Server {
    place.serve(&["plugin", plugin])
}

/// Starts a sidecar for x_example as a process.
fn sidecar(place: &Place, name: &str, plugin: &str, upstream: u16, flags: &[&str]) -> Server {
    let file = format!(
        "[[route]]\nname = \"{name}\"\nprotocol = \"plugin\"\nplugin = \"{plugin}\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:{upstream}\"]\n"
    );
    fs::write(place.path(name), file).expect("a file");
    let mut command = place.command(&[&["relay", "sidecar", name], flags].concat());
    command
        .env("X_EXAMPLE_PANIC", "panic now")
        .stderr(Stdio::from(
            fs::File::create(place.path(&format!("{name}.log"))).expect("a log"),
        ));
    Server::start(&mut command)
}

#[test]
fn plugin_load_accounts_for_every_call() {
    let place = place();
    let server = serve(&place, "rust.so");
    let target = url(&server);
    let load = |out: &str, flags: &[&str]| {
        let arguments = [
            &["plugin", &target, "--codec", "c.so", "--out", out],
            &["--json", "-q"][..],
            flags,
        ]
        .concat();
        let run = place.expect_run(0, &arguments);
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        run
    };
    let open = load(
        "open",
        &["--data", "hello", "--rate", "500/s", "-z", "1s", "-c", "4"],
    );
    assert_eq!(
        (&open["total"]["due"], &open["total"]["ok"]),
        (&500.into(), &500.into())
    );
    let plan = place.read("open/plan.toml");
    for line in ["[call.plugin]", "codec = \"c.so\"", "payload = \"hello\""] {
        assert!(plan.contains(line), "{plan}");
    }
    fs::write(place.path("request.bin"), b"x\x01\0\0\0\0\x09\0\0\0\x03abc").expect("a file");
    let closed = load(
        "closed",
        &[
            "--frame",
            "@request.bin",
            "--clients",
            "64",
            "-c",
            "2",
            "--in-flight",
            "16",
            "-n",
            "3000",
        ],
    );
    assert_eq!(closed["total"]["ok"], 3000, "{closed}");
    let hex = load(
        "hex",
        &[
            "--frame",
            "7801 00 00000009 00000000",
            "--fleet",
            "3",
            "-n",
            "300",
        ],
    );
    assert_eq!(hex["total"]["ok"], 300);
    // The kept plan gives the same run again.
    place.expect(
        0,
        &[
            "run",
            "open/plan.toml",
            "--calls",
            "20",
            "--out",
            "again",
            "-q",
        ],
    );
    let (code, said) = server.stop();
    assert_eq!(code, 0);
    assert!(said.contains("answered 3820"), "{said}");
}

#[test]
fn plugin_load_works_over_tls_with_trace() {
    let place = place();
    place.certificates();
    let server = place.serve(&[&["plugin", "c.so"], &SERVER_TLS[..]].concat());
    let target = format!("plugins://localhost:{}", server.port);
    let mut arguments = vec![
        "plugin", &target, "--codec", "rust.so", "--data", "hello", "--fleet", "1", "-n", "2",
        "--out", "run", "--trace",
    ];
    arguments.extend(CLIENT_TLS);
    let output = place.run(&arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for line in [
        "id 1 request, payload 5 bytes, 16 bytes",
        "id 1 response, payload 5 bytes, 18 bytes",
    ] {
        assert!(said.contains(line), "no `{line}` in {said}");
    }
    // Preparing a call and printing its frames do not show up as steps.
    for (line, times) in [
        ("[in encodeRequest] request: hello", 2),
        ("[out encodeRequest]", 2),
        ("[in decodeResponse]", 2),
        ("[out decodeResponse] payload: hello", 2),
        ("[in decodeRequest]", 0),
    ] {
        assert_eq!(said.matches(line).count(), times, "`{line}` in {said}");
    }
}

#[test]
fn sidecars_relay_plugin_load_and_log_frames() {
    let place = place();
    let server = serve(&place, "c.so");
    let near_it = sidecar(&place, "near-it", "rust.so", server.port, &["-v"]);
    let outside = sidecar(&place, "outside", "c.so", near_it.port, &["-v"]);
    let target = url(&outside);
    let run = place.expect_run(
        0,
        &[
            "plugin",
            &target,
            "--codec",
            "c.so",
            "--data",
            "Hello World",
            "--clients",
            "20",
            "-c",
            "5",
            "-n",
            "400",
            "--out",
            "run",
            "--json",
            "-q",
        ],
    );
    assert_eq!(run["total"]["ok"], 400, "{run}");
    assert_eq!(outside.stop().0, 0);
    assert_eq!(near_it.stop().0, 0);
    for name in ["near-it", "outside"] {
        let log = place.read(&format!("{name}.log"));
        for line in [
            "[in decodeRequest]",
            "[out decodeRequest] payload: Hello World",
            "[in encodeRequest] request: Hello World",
            "[out encodeRequest]",
            "[in decodeResponse]",
            "[out decodeResponse] payload: Hello World",
            "[in encodeResponse] response: Hello World",
            "[out encodeResponse]",
        ] {
            let printed = log.lines().filter(|l| l.ends_with(line)).count();
            assert!(
                printed >= 400,
                "{name}: `{line}` is printed {printed} times"
            );
        }
    }
}

#[test]
fn plugin_panic_closes_only_its_connection() {
    let place = place();
    let server = serve(&place, "c.so");
    let mut relay = sidecar(&place, "relay", "rust.so", server.port, &[]);
    let connect = || {
        let stream = TcpStream::connect(relay.address()).expect("the sidecar is there");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a timeout");
        stream
    };
    let mut other = connect();
    let mut unlucky = connect();
    unlucky
        .write_all(b"x\x01\0\0\0\0\x01\0\0\0\x09panic now")
        .expect("sent");
    let mut answer = [0; 18];
    match unlucky.read(&mut answer) {
        Ok(read) => assert_eq!(read, 0, "an answer"),
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    other
        .write_all(b"x\x01\0\0\0\0\x07\0\0\0\x05hello")
        .expect("sent");
    other.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"x\x01\x01\0\0\0\x07\0\0\0\0\0\x05hello");
    signal(&relay.child, rustix::process::Signal::TERM);
    drop((other, unlucky));
    assert_eq!(wait(&mut relay.child), 0);
    let log = place.read("relay.log");
    assert!(log.contains("asked to panic by X_EXAMPLE_PANIC"), "{log}");
}

#[test]
fn unusable_plugins_prevent_start_with_reason() {
    let place = place();
    let folder = place.path(".");
    fs::rename(
        built::nonsense(&folder, "old.so", &["-DABI=7"]),
        place.path("version.so"),
    )
    .expect("version.so");
    built::nonsense(&folder, "none.so", &["-DSYMBOL=another"]);
    let file = |plugin: &str| {
        format!(
            "[[route]]\nname = \"a\"\nprotocol = \"plugin\"\nplugin = \"{plugin}\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:1\"]\n"
        )
    };
    for (plugin, needle) in [
        ("absent.so", "plugin absent.so: can't be read: No such file"),
        (
            "version.so",
            "speaks version 7 of the interface, and this program version 1",
        ),
        ("none.so", "exports no function `plimsoll_codec`"),
    ] {
        fs::write(place.path("sidecar.toml"), file(plugin)).expect("a file");
        for (code, arguments) in [
            (1, &["relay", "sidecar", "sidecar.toml"][..]),
            (1, &["serve", "plugin", plugin, "--listen", "127.0.0.1:0"]),
            (
                2,
                &[
                    "plugin",
                    "plugin://127.0.0.1:1",
                    "--codec",
                    plugin,
                    "--rate",
                    "1/s",
                    "-z",
                    "1s",
                ],
            ),
        ] {
            let output = place.run(arguments);
            let said = stderr_of(&output);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
            assert!(said.contains(needle), "{arguments:?}: {said}");
        }
    }
    for (flags, needle) in [
        (
            &["--frame", "78zz"][..],
            "`--frame`: not hexadecimal: write two digits per byte",
        ),
        (
            &["--frame", "7801"],
            "`--frame`: not a whole request of x_example: 2 bytes, but more are needed",
        ),
        (
            &["--frame", "@absent.bin"],
            "`--frame`: can't read absent.bin",
        ),
        (
            &["--data", "x", "--in-flight", "0"],
            "`--in-flight`: 0 calls in flight",
        ),
    ] {
        let arguments = [
            &["plugin", "plugin://127.0.0.1:1", "--codec", "c.so"][..],
            &["--rate", "1/s", "-z", "1s"],
            flags,
        ]
        .concat();
        let output = place.run(&arguments);
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(needle), "{said}");
    }
    // A different protocol, recognised by its first bytes.
    let bolt = place.serve(&["score", "--delay", "1ms"]);
    let output = place.run(&[
        "plugin",
        &url(&bolt),
        "--codec",
        "c.so",
        "--data",
        "x",
        "--fleet",
        "1",
        "-n",
        "1",
        "--out",
        "wrong",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(
        said.contains("PROTOCOL_ERROR") || said.contains("CONNECTION_CLOSED"),
        "{said}"
    );
    assert!(Path::new(&place.path("wrong")).is_dir());
}

#[test]
fn spinning_codec_ends_sidecar_and_is_named() {
    let place = place();
    built::nonsense(&place.path("."), "spins.so", &["-DSPIN"]);
    let service = serve(&place, "rust.so");
    let file = format!(
        "[[route]]\nname = \"orders\"\nprotocol = \"plugin\"\nplugin = \"spins.so\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{}\"]\ncodec_timeout = \"500ms\"\n",
        service.port
    );
    fs::write(place.path("relay.toml"), file).expect("a file");
    let log = fs::File::create(place.path("relay.log")).expect("a log");
    let mut command = place.command(&["relay", "sidecar", "relay.toml"]);
    let mut relay = Server::start(command.stderr(Stdio::from(log)));
    let mut client = TcpStream::connect(relay.address()).expect("a sidecar");
    client.write_all(b"spin!").expect("sent");
    assert_eq!(wait(&mut relay.child), 70);
    let printed = place.read("relay.log");
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = "route orders: plugin spins.so: `decode` has not returned for 500ms";
    assert!(printed.contains(named), "{printed}");
}

/// Steps send payloads with values that earlier payloads had.
#[test]
fn plugin_steps_take_values_and_use_them() {
    let place = place();
    let (server, http) = (serve(&place, "c.so"), place.serve(&["http"]));
    let plan = format!(
        r#"
target = "http://{}"
[[steps]]
name = "begin"
method = "POST"
path = "/echo"
body = '{{"id": "{{{{uuid}}}}"}}'
take.id = "/id"
[[steps]]
name = "echo"
target = "{}"
codec = "c.so"
payload = '{{"said": "{{{{id}}}} {{{{seq}}}}"}}'
take.said = "/said"
take.begin = {{ bytes = "0..6", as = "hex" }}
[[steps]]
name = "frame"
target = "{}"
codec = "c.so"
frame = "7801 0000 0000 09 000000 03 616263"
take.text = {{ regex = "^abc$" }}
[[steps]]
name = "compare"
if = "begin == 7b2273616964"
target = "{}"
codec = "c.so"
payload = "{{{{said}}}} {{{{text}}}}"
take.all = {{ regex = "^[0-9a-f-]{{36}} [0-9]+ abc$" }}
[load]
clients = 3
calls = 15
"#,
        http.address(),
        url(&server),
        url(&server),
        url(&server)
    );
    fs::write(place.path("steps.toml"), plan).expect("a file");
    let run = place.expect_run(0, &["run", "steps.toml", "-q", "--json", "--out", "run"]);
    let steps = run["total"]["steps"].as_array().expect("a list");
    let ok: Vec<Option<u64>> = steps.iter().map(|step| step["ok"].as_u64()).collect();
    assert_eq!(ok, [Some(15); 4], "{run}");
}

/// A plan's own target may be that of a plugin's protocol, whose section has the defaults of its steps.
#[test]
fn journeys_may_have_own_plugin_target() {
    let place = place();
    let (server, http) = (serve(&place, "c.so"), place.serve(&["http"]));
    fs::write(place.path("users.csv"), "user\nada\nbob\n").expect("a file");
    let plan = format!(
        r#"
target = "{}"
[rows]
file = "users.csv"
order = "unique"
[call.plugin]
codec = "c.so"
[[steps]]
name = "first"
payload = '{{"said": "{{{{row.user}}}}"}}'
take.said = "/said"
[[steps]]
name = "http"
target = "http://{}"
path = "/echo"
method = "POST"
body = '{{"said": "{{{{said}}}}"}}'
take.again = "/said"
[[steps]]
name = "third"
if = "again"
payload = "{{{{again}}}} {{{{row.user}}}}"
take.both = {{ regex = "^(ada ada|bob bob)$" }}
[load]
clients = 2
calls = 2
"#,
        url(&server),
        http.address()
    );
    fs::write(place.path("steps.toml"), &plan).expect("a file");
    let counts = |file: &str| {
        let run = place.expect_run(0, &["run", file, "-q", "--json", "--out", "run"]);
        let steps = run["total"]["steps"].as_array().expect("a list").clone();
        assert_eq!(run["protocol"], "plugin", "{run}");
        let ok: Vec<Option<u64>> = steps.iter().map(|step| step["ok"].as_u64()).collect();
        assert_eq!(ok, [Some(2); 3], "{run}");
    };
    counts("steps.toml");
    fs::rename(place.path("run/plan.toml"), place.path("saved.toml")).expect("a plan");
    fs::remove_dir_all(place.path("run")).expect("a run");
    counts("saved.toml");
    // A third user has no row.
    fs::write(
        place.path("more.toml"),
        plan.replace("calls = 2", "calls = 3"),
    )
    .expect("a file");
    let refused = place.run(&["run", "more.toml", "--dry-run"]);
    let said = stderr_of(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("rows.order"), "{said}");
}
