//! Requests that flags describe: Basic authentication, forms, and redirects that are followed before the load.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use super::run_http;
use super::wire::{Recorder, always};
use crate::support::{Place, only_run, stderr_of, text};

/// The encoding of `me:hush`.
const ENCODED: &str = "bWU6aHVzaA==";

#[test]
fn password_is_sent_and_kept_out_of_files() {
    let (place, server) = (Place::new(), Recorder::start(always));
    fs::write(place.path(".env"), "PASSWORD=hush\n").unwrap();
    for pair in ["me:hush", "me:$PASSWORD"] {
        let load = ["--clients", "1", "--calls", "2", "--save-plan", "plan.toml"];
        run_http(
            &place,
            0,
            &server.url("/"),
            &[&["-u", pair], &load[..]].concat(),
        );
        let received = server.take();
        assert_eq!(received.len(), 2);
        let field = format!("\r\nauthorization: Basic {ENCODED}\r\n");
        assert!(received[0].0.contains(&field), "{}", received[0].0);
        let dry = ["http", &server.url("/"), "-u", pair, "--dry-run"];
        let mut texts = vec![place.read("plan.toml"), place.expect(0, &dry)];
        for file in fs::read_dir(place.path("run")).unwrap() {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            texts.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        for text in texts {
            assert!(!text.contains("hush") && !text.contains(ENCODED), "{text}");
        }
        assert_eq!(server.take().len(), 0);
    }
    assert!(place.read("plan.toml").contains("basic = \"me:$PASSWORD\""));
    // The saved plan has the same request, by the variable.
    place.expect(0, &["run", "plan.toml", "-q", "--out", "again"]);
    assert!(server.take()[0].0.contains(ENCODED));
}

#[test]
fn dollar_signs_are_doubled_to_be_text() {
    let (place, server) = (Place::new(), Recorder::start(always));
    let load = ["--clients", "1", "--calls", "1"];
    let flags = ["-H", "x-a: $$HOME", "-u", "me:$$x"];
    run_http(&place, 0, &server.url("/"), &[&flags[..], &load].concat());
    let received = server.take();
    assert!(received[0].0.contains("\r\nx-a: $HOME\r\n"), "{received:?}");
    // The encoding of `me:$x`.
    assert!(received[0].0.contains("Basic bWU6JHg=\r\n"), "{received:?}");
}

#[test]
fn form_arrives_part_by_part() {
    let (place, server) = (Place::new(), Recorder::start(always));
    fs::write(place.path("a.bin"), [0, 0xff, b'\r', b'\n']).unwrap();
    let form = [
        "-F",
        "user=ann;type=text/plain",
        "-F",
        "file=@a.bin;filename=b",
    ];
    let load = ["--clients", "1", "--calls", "1"];
    run_http(&place, 0, &server.url("/"), &[&form[..], &load].concat());
    let (head, body) = server.take().remove(0);
    assert!(head.starts_with("POST / HTTP/1.1\r\n"), "{head}");
    let kind = "\r\ncontent-type: multipart/form-data; boundary=plimsoll-form-0\r\n";
    assert!(head.contains(kind), "{head}");
    let mut expected = b"--plimsoll-form-0\r\ncontent-disposition: form-data; name=\"user\"\r\n\
        content-type: text/plain\r\n\r\nann\r\n--plimsoll-form-0\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"b\"\r\n\
        content-type: application/octet-stream\r\n\r\n"
        .to_vec();
    expected.extend_from_slice(&[0, 0xff, b'\r', b'\n']);
    expected.extend_from_slice(b"\r\n--plimsoll-form-0--\r\n");
    assert_eq!(body, expected);
}

/// Answers paths that begin with `/old` with a redirect to `location`, and others with 200. Returns the URL of the
/// server, and the heads of the requests.
fn redirecting(location: &str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let heads = Arc::new(Mutex::new(Vec::new()));
    let (all, location) = (Arc::clone(&heads), location.to_owned());
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let (all, location) = (Arc::clone(&all), location.clone());
            thread::spawn(move || {
                let mut reader = BufReader::new(connection.try_clone().expect("a socket"));
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if !matches!(reader.read_line(&mut head), Ok(1..)) {
                            return;
                        }
                    }
                    let answer = if head.contains(" /old") {
                        format!(
                            "HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
                        )
                    } else {
                        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()
                    };
                    all.lock().expect("no panic").push(head);
                    if connection.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, heads)
}

const LOAD: [&str; 4] = ["--clients", "1", "--calls", "3"];

#[test]
fn load_goes_where_redirect_leads() {
    let place = Place::new();
    let (url, heads) = redirecting("/new?a=b");
    let flags = ["-L", "-H", "authorization: hush"];
    let run = run_http(
        &place,
        0,
        &format!("{url}/old"),
        &[&flags[..], &LOAD].concat(),
    );
    assert_eq!(run["total"]["ok"], 3, "{run}");
    let heads = heads.lock().unwrap();
    let lines: Vec<&str> = heads
        .iter()
        .filter_map(|head| head.lines().next())
        .collect();
    let load = ["GET /new?a=b HTTP/1.1"; 4];
    assert_eq!(lines[0], "GET /old HTTP/1.1");
    // One request finds that there is no further redirect.
    assert_eq!(lines[1..], load);
    let is_given = |head: &String| head.to_lowercase().contains("authorization: hush");
    assert!(heads.iter().all(is_given), "{heads:?}");
    assert!(place.read("run/plan.toml").contains("/new?a=b"));
}

#[test]
fn request_before_load_is_announced() {
    let place = Place::new();
    let (url, heads) = redirecting("");
    let line = ["http", &format!("{url}/new"), "-L", "--json"];
    let said = place.run(&[&line, &LOAD[..]].concat());
    let notices = stderr_of(&said);
    assert_eq!(said.status.code(), Some(0), "{notices}");
    let expected = "redirects followed: 0; 1 request before the load is in no figure";
    assert!(notices.contains(expected), "{notices}");
    assert_eq!(heads.lock().unwrap().len(), 4);
    let document = serde_json::from_str(&text(&said.stdout)).expect("a document");
    assert_eq!(only_run(&document)["total"]["due"], 3);
}

#[test]
fn another_origin_is_sent_no_credentials() {
    let place = Place::new();
    let (other, seen) = redirecting("");
    let (url, _) = redirecting(&format!("{other}/new"));
    let flags = [
        "-L",
        "-u",
        "me:hush",
        "-H",
        "cookie: a=hush",
        "-H",
        "x-a: kept",
    ];
    let said = place.run(
        &[
            &["http", &format!("{url}/old"), "--out", "run"],
            &flags[..],
            &LOAD,
        ]
        .concat(),
    );
    let text = stderr_of(&said);
    assert_eq!(said.status.code(), Some(0), "{text}");
    let line = format!(
        "redirects followed: 1; the load goes to {other}/new, without authorization, cookie"
    );
    assert!(text.contains(&line), "{text}");
    let requests = "; 2 requests before the load are in no figure";
    assert!(text.contains(requests), "{text}");
    let heads = seen.lock().unwrap();
    assert_eq!(heads.len(), 4);
    for head in heads.iter() {
        assert!(head.contains("x-a: kept"), "{head}");
        assert!(!head.contains("hush") && !head.contains(ENCODED), "{head}");
    }
}

#[test]
fn redirects_that_cannot_be_followed_are_named() {
    let place = Place::new();
    let (url, _) = redirecting("/old/");
    let old = format!("{url}/old");
    for (flags, problem) in [
        (&["-L"][..], "--redirects: more than 10 redirects"),
        (&["--redirects=2"], "--redirects: more than 2 redirects"),
        (
            &["-L", "-d", "x"],
            "answers 302 to GET, which says nothing of POST",
        ),
    ] {
        let said = place.run(&[&["http", &old], flags, &LOAD].concat());
        let text = stderr_of(&said);
        assert_eq!(said.status.code(), Some(1), "{text}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(problem), "{text}");
    }
}
