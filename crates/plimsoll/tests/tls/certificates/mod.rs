//! Certificates made by other tools, at both ends, and how every report describes them.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod revocation;

use crate::support;

use std::fs;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use plimsoll_stack::certificates::{CertificateOptions, Validity, make_certificates};
use support::openssl::{s_client, s_server};
use support::peers::{peer, run_successfully, tool};
use support::{MAX_WAIT, Place, SCORE, Server, output, stderr_of, text};

/// Flags with which `openssl s_client` shows its certificate and reads until the server closes.
const SHOW_CERTIFICATE: [&str; 5] = [
    "-ign_eof",
    "-cert",
    "certs/client.crt",
    "-key",
    "certs/client.key",
];

/// The command of the TLS workload, without a name override.
const OWN: &str =
    "req -x509 -newkey rsa:2048 -keyout server.key -out server.crt -days 3650 -nodes -subj";
const DEFAULT_SUBJECT: &str = "/C=AU/ST=Some-State/O=Internet Widgits Pty Ltd";

/// Makes the files of the gRPC workload's seven-line script: `x509 -req` without extensions, which
/// creates version 1 certificates with some versions of OpenSSL.
const CA_SCRIPT: [&str; 7] = [
    "genrsa -out ca.key 2048",
    "req -x509 -new -key ca.key -days 365 -out ca.crt -subj /CN=test-ca",
    "genrsa -out server.key 2048",
    "req -new -key server.key -out server.csr -subj /CN=localhost",
    "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.crt",
    "genrsa -out client.key 2048",
    "req -new -key client.key -out client.csr -subj /CN=client",
];
const CLIENT: &str =
    "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out client.crt";

const SERVER: [&str; 4] = ["--tls-cert", "server.crt", "--tls-key", "server.key"];
const NEW: [&str; 6] = ["--calls", "3", "--clients", "1", "--mode", "new"];
const MUTUAL: [&str; 6] = [
    "--ca",
    "ca.crt",
    "--cert",
    "client.crt",
    "--key",
    "client.key",
];

#[track_caller]
fn openssl(place: &Place, arguments: &str) {
    openssl_with(place, &arguments.split(' ').collect::<Vec<_>>());
}

#[track_caller]
fn openssl_with(place: &Place, arguments: &[&str]) {
    run_successfully(tool("openssl").args(arguments).current_dir(place.path("")));
}

fn own() -> Place {
    let place = Place::new();
    let mut arguments: Vec<&str> = OWN.split(' ').collect();
    arguments.push(DEFAULT_SUBJECT);
    openssl_with(&place, &arguments);
    place
}

fn place_with_ca_script() -> Place {
    let place = Place::new();
    CA_SCRIPT.iter().for_each(|line| openssl(&place, line));
    openssl(&place, CLIENT);
    place
}

/// Returns what is unusual about `server.crt` of [`place_with_ca_script`], which depends on the OpenSSL version.
fn unusual(place: &Place) -> Vec<&'static str> {
    let mut shown = tool("openssl");
    let shown = shown.args(["x509", "-in", "server.crt", "-noout", "-text"]);
    let shown = run_successfully(shown.current_dir(place.path("")));
    if text(&shown.stdout).contains("Version: 1 ") {
        vec!["version_1", "common_name"]
    } else {
        vec!["common_name"]
    }
}

/// Starts OpenSSL as a server of `file`.
fn theirs(place: &Place, flags: &[&str]) -> Server {
    fs::write(place.path("file"), "content").expect("a file");
    let own = [
        "-WWW",
        "-tls1_3",
        "-cert",
        "server.crt",
        "-key",
        "server.key",
    ];
    s_server(place, &[&own, flags].concat())
}

fn run_command(place: &Place, arguments: &[&str]) -> Output {
    output(&mut place.command(arguments), MAX_WAIT)
}

/// Returns a command's output as one line, independent of its wrapping.
fn unwrapped_output(output: &Output) -> String {
    let printed = text(&output.stdout).replace('│', " ");
    let words: Vec<&str> = printed.split_whitespace().collect();
    format!("{} {}", stderr_of(output), words.join(" "))
}

/// Runs a load of three calls or files, which must succeed; returns what `run.json` records about
/// the certificate.
#[track_caller]
fn assert_load_succeeds(place: &Place, command: &[&str], flags: &[&str]) -> Vec<String> {
    let run = format!(
        "run-{}",
        fs::read_dir(place.path("")).expect("a folder").count()
    );
    let arguments = [command, flags, &["--out", &run]].concat();
    let output = run_command(place, &arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        stderr_of(&output)
    );
    let run = place.run_json(&run);
    assert_eq!(run["total"]["ok"], 3, "{run}");
    let unusual = run["tls"]["certificate"].as_array().cloned();
    let unusual = unusual.unwrap_or_default();
    unusual
        .iter()
        .map(|how| how.as_str().expect("a word").to_owned())
        .collect()
}

#[track_caller]
fn assert_load_fails(place: &Place, command: &[&str], flags: &[&str], words: &[&str]) {
    let arguments = [command, flags, &["--out", "never"]].concat();
    let output = run_command(place, &arguments);
    let said = unwrapped_output(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?}: {said}");
    }
}

fn grpc_load(url: &str) -> Vec<&str> {
    [
        &["grpc", url][..],
        &SCORE,
        &["--clients", "1", "--calls", "3"],
    ]
    .concat()
}

fn fetch_load(url: &str) -> Vec<&str> {
    // s_server closes the connection after each answer.
    vec!["fetch", url, "--clients", "1", "--calls", "3", "--cold"]
}

#[test]
fn self_signed_certificate_is_accepted_as_ca() {
    let place = own();
    let ours = place.serve(&[&["score"], &SERVER[..]].concat());
    let theirs = theirs(&place, &[]);
    let url = format!("https://127.0.0.1:{}/file", theirs.port);
    let ca = ["--ca", "server.crt"];
    assert_eq!(
        assert_load_succeeds(&place, &grpc_load(&ours.tls()), &ca),
        ["in_ca_file"]
    );
    for more in [
        &[][..],
        &["--chain", "once"],
        &["--records", "library"],
        &["--resume"],
    ] {
        let flags = [&ca[..], more].concat();
        assert_eq!(
            assert_load_succeeds(&place, &fetch_load(&url), &flags),
            ["in_ca_file"]
        );
    }
    let output = run_command(
        &place,
        &[&fetch_load(&url)[..], &ca, &["--out", "shown"]].concat(),
    );
    assert!(
        unwrapped_output(&output).contains("the server's certificate is in the CA file itself"),
        "{}",
        unwrapped_output(&output)
    );
    let url = ours.tls();
    let list = ["grpc", "list", &url, "--ca", "server.crt"];
    assert!(place.expect(0, &list).contains("score.ScoreService"));
    // The certificate is trusted because it is the configured one, not because it is self-signed.
    openssl(
        &place,
        "req -x509 -new -key server.key -out again.crt -days 30 -subj /CN=localhost",
    );
    let words = ["TLS_UNKNOWN_CA", "it is self-signed"];
    assert_load_fails(
        &place,
        &grpc_load(&ours.tls()),
        &["--ca", "again.crt"],
        &words,
    );
}

#[test]
fn certificates_without_san_work_at_both_ends() {
    let place = place_with_ca_script();
    let unusual = unusual(&place);
    let demand = [&["score"], &SERVER[..], &["--tls-client-ca", "ca.crt"]].concat();
    let ours = place.serve(&demand);
    assert_eq!(
        assert_load_succeeds(&place, &grpc_load(&ours.tls()), &MUTUAL),
        unusual
    );
    let fast = place.serve(&[&["fast"], &SERVER[..]].concat());
    assert_eq!(
        assert_load_succeeds(&place, &grpc_load(&fast.tls()), &["--ca", "ca.crt"]),
        unusual
    );
    // OpenSSL accepts them, too: as a server that requires one, and as a client that presents one.
    let theirs = theirs(
        &place,
        &["-Verify", "1", "-verify_return_error", "-CAfile", "ca.crt"],
    );
    let url = format!("https://localhost:{}/file", theirs.port);
    assert_eq!(
        assert_load_succeeds(&place, &fetch_load(&url), &MUTUAL),
        unusual
    );
    let files = place.serve(&[&["files"], &demand[1..]].concat());
    let script = format!(
        "import http.client, ssl\n\
         context = ssl.create_default_context(cafile='ca.crt')\n\
         context.check_hostname = False\n\
         context.load_cert_chain('client.crt', 'client.key')\n\
         link = http.client.HTTPSConnection('localhost', {}, context=context)\n\
         link.request('GET', '/bytes/1KiB')\n\
         print(link.getresponse().status)\n",
        files.port
    );
    let mut python = Command::new(peer("venv/bin/python"));
    let answer = run_successfully(python.args(["-c", &script]).current_dir(place.path("")));
    assert_eq!(text(&answer.stdout).trim(), "200");
    // Other defects of such certificates are still rejected.
    assert_load_fails(
        &place,
        &grpc_load(&ours.tls()),
        &["--ca", "ca.crt"],
        &["TLS_CLIENT_CERTIFICATE_REQUIRED"],
    );
    let url = format!("grpcs://127.0.0.1:{}", ours.port);
    assert_load_fails(
        &place,
        &grpc_load(&url),
        &MUTUAL,
        &["TLS_NAME_MISMATCH", "localhost"],
    );
    openssl(
        &place,
        "x509 -req -in client.csr -CA server.crt -CAkey server.key -CAcreateserial -days 30 -out client.crt",
    );
    assert_load_fails(
        &place,
        &grpc_load(&ours.tls()),
        &MUTUAL,
        &["TLS_CLIENT_CERTIFICATE_REJECTED"],
    );
    openssl(
        &place,
        "req -x509 -new -key client.key -days 30 -out else.crt -subj /CN=else",
    );
    let words = ["TLS_UNKNOWN_CA", "an intermediate certificate is missing"];
    assert_load_fails(
        &place,
        &grpc_load(&ours.tls()),
        &["--ca", "else.crt"],
        &words,
    );
    openssl(
        &place,
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days -1 -out server.crt",
    );
    let expired = place.serve(&[&["score"], &SERVER[..]].concat());
    let ca = ["--ca", "ca.crt"];
    assert_load_fails(
        &place,
        &grpc_load(&expired.tls()),
        &ca,
        &["TLS_CERTIFICATE_EXPIRED"],
    );
}

#[test]
fn only_pinned_certificate_is_accepted() {
    let place = place_with_ca_script();
    let server = place.serve(&[&["score"], &SERVER[..]].concat());
    let mut shown = tool("openssl");
    let shown = shown.args([
        "x509",
        "-in",
        "server.crt",
        "-noout",
        "-fingerprint",
        "-sha256",
    ]);
    let shown = run_successfully(shown.current_dir(place.path("")));
    let printed = text(&shown.stdout);
    let digits = printed.split('=').nth(1).expect("a fingerprint").trim();
    let pin = format!("sha256:{digits}");
    let url = format!("grpcs://127.0.0.1:{}", server.port);
    assert_eq!(
        assert_load_succeeds(&place, &grpc_load(&url), &["--pin", &pin]),
        ["pinned"]
    );
    let other = format!("sha256:{}", "0".repeat(64));
    let both = ["--pin", &other, "--pin", &pin];
    assert_eq!(
        assert_load_succeeds(&place, &grpc_load(&url), &both),
        ["pinned"]
    );
    let words = ["TLS_BAD_CERTIFICATE", "which is not pinned"];
    assert_load_fails(&place, &grpc_load(&url), &["--pin", &other], &words);
    let wrong = run_command(&place, &[&grpc_load(&url)[..], &["--pin", "5b"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        unwrapped_output(&wrong).contains("--pin"),
        "{}",
        unwrapped_output(&wrong)
    );
    let wrong = run_command(
        &place,
        &[&grpc_load(&url)[..], &["--pin", &pin, "--ca", "ca.crt"]].concat(),
    );
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        unwrapped_output(&wrong).contains("not checked against a CA"),
        "{}",
        unwrapped_output(&wrong)
    );
}

#[test]
fn skipped_verification_is_reported_everywhere() {
    let place = own();
    let server = place.serve(&[&["score"], &SERVER[..]].concat());
    let url = server.tls();
    let load = [&grpc_load(&url)[..], &["--insecure", "--out", "run"]].concat();
    let output = run_command(&place, &load);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    // The warning appears at the start, in the line about the link, and as a note.
    assert_eq!(
        unwrapped_output(&output).matches("INSECURE").count(),
        3,
        "{}",
        stderr_of(&output)
    );
    let run = place.run_json("run");
    assert_eq!(run["insecure"], true);
    assert_eq!(run["tls"]["certificate"][0], "unchecked");
    assert_eq!(run["health"]["problems"][0]["kind"], "server_unchecked");
    assert_eq!(run["health"]["valid"], true);
    for (format, words) in [
        ("--json", "\"insecure\": true"),
        (
            "--markdown",
            "INSECURE: the server's certificate was not checked",
        ),
        (
            "--junit",
            "<property name=\"tls.insecure\" value=\"true\"/>",
        ),
    ] {
        let file = format!("report{format}");
        let mut arguments = vec!["report", "run", format];
        if format != "--json" {
            arguments.push(&file);
        }
        let out = place.expect(0, &arguments);
        let shown = match format {
            "--json" => out,
            _ => place.read(&file),
        };
        assert!(shown.contains(words), "{format}: {shown}");
    }
    place.expect(0, &["report", "run", "--html", "report.html"]);
    assert!(place.read("report.html").contains("INSECURE"));
    let list = run_command(&place, &["grpc", "list", &url, "--insecure"]);
    assert!(
        unwrapped_output(&list).contains("INSECURE"),
        "{}",
        stderr_of(&list)
    );
    assert_load_fails(
        &place,
        &grpc_load(&url),
        &[],
        &["TLS_UNKNOWN_CA", "it is self-signed"],
    );
}

/// Resumption skips certificate checks, so sessions must not be resumed after expiry.
#[test]
fn expired_certificate_prevents_session_resumption() {
    let place = Place::new();
    place.certificates_for(Duration::from_secs(6));
    let server = place.serve(&[&["score"], &support::SERVER_TLS[..]].concat());
    let url = server.tls();
    let runs: Vec<Output> = thread::scope(|scope| {
        let started = ["own", "library"].map(|records| {
            let mut command = place.command(&["grpc", &url]);
            command
                .args(SCORE)
                .args(["--cold", "--rate", "20/s", "--duration", "9s", "--resume"]);
            command.args([
                "--ca",
                "certs/ca.crt",
                "--records",
                records,
                "--out",
                records,
            ]);
            scope.spawn(move || output(&mut command, MAX_WAIT))
        });
        started.map(|run| run.join().expect("a run")).into()
    });
    for (records, output) in ["own", "library"].into_iter().zip(runs) {
        let run = place.run_json(records);
        let errors = run["total"]["errors_by_code"].as_array().expect("a list");
        assert_eq!(errors.len(), 1, "{}", stderr_of(&output));
        assert_eq!(errors[0]["code"], "TLS_CERTIFICATE_EXPIRED", "{run}");
        let resumed = run["total"]["connections_resumed"]
            .as_u64()
            .expect("a count");
        assert!(resumed > 0, "{run}");
        // The last second of validity counts in full.
        assert!(errors[0]["count"].as_u64().expect("a count") > 20, "{run}");
    }
}

#[test]
fn not_yet_valid_certificate_has_own_code() {
    let place = Place::new();
    let now = plimsoll_model::runs::run::Timestamp::now();
    let hour = Duration::from_secs(3600);
    let options = CertificateOptions {
        validity: Validity::Between {
            not_before: now + hour,
            not_after: now + 2 * hour,
        },
        ..CertificateOptions::default()
    };
    make_certificates(&place.path("certs"), &options).expect("certificates");
    let server = place.serve(&[&["files"], &support::SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/7", server.port);
    let flags = [&NEW[..], &support::CLIENT_TLS].concat();
    let words = ["TLS_CERTIFICATE_NOT_YET_VALID", "is not valid before 20"];
    assert_load_fails(&place, &["fetch", &url], &flags, &words);
    // A server also reports that its own certificate has expired.
    let options = CertificateOptions {
        validity: Validity::Between {
            not_before: now - 2 * hour,
            not_after: now - hour,
        },
        ..CertificateOptions::default()
    };
    make_certificates(&place.path("old"), &options).expect("certificates");
    let old = [
        "--tls-cert",
        "old/server.crt",
        "--tls-key",
        "old/server.key",
    ];
    let listen = ["serve", "files", "--listen", "127.0.0.1:0"];
    let mut command = place.command(&[&listen[..], &old].concat());
    command.stderr(fs::File::create(place.path("stderr")).expect("a file"));
    let (code, _) = Server::start(&mut command).stop();
    assert_eq!(code, 0);
    let said = place.read("stderr");
    assert!(said.contains("expired"), "{said}");
}
