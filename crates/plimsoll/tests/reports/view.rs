//! `plimsoll view`: a folder of runs in a browser.

use crate::browser;
use crate::support;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;

use browser::{Browser, Viewport};
use support::{Place, Server, get};

/// Four runs of one plan, a run of another, and a directory that a later version wrote.
fn folder_of_runs() -> Place {
    let place = Place::new();
    for (run, ms) in [
        ("one", 5.0),
        ("two", 5.5),
        ("deep/three", 6.0),
        ("four", 5.2),
    ] {
        let lines: String = (0..400)
            .map(|i| {
                format!(
                    "{{\"ok\":true,\"latency_ms\":{}}}\n",
                    ms + f64::from(i % 50) / 100.0
                )
            })
            .collect();
        fs::write(
            place.path("steady.txt"),
            format!("#TEST=01_steady\n{lines}"),
        )
        .expect("written");
        place.expect(
            0,
            &[
                "import",
                "steady.txt",
                "--out",
                &format!("runs/{run}"),
                "-q",
            ],
        );
    }
    fs::rename(place.path("steady.txt"), place.path("<i>other.txt")).expect("renamed");
    place.expect(0, &["import", "<i>other.txt", "--out", "runs/five", "-q"]);
    fs::create_dir_all(place.path("runs/later")).expect("made");
    let later = "{\"schema_version\": 99}";
    fs::write(place.path("runs/later/run.json"), later).expect("written");
    place
}

fn start_view(place: &Place) -> Server {
    Server::start(&mut place.command(&["view", "runs", "--port", "0"]))
}

#[test]
fn view_serves_only_its_folder() {
    let place = folder_of_runs();
    let server = start_view(&place);
    let (status, list) = get(&server, "localhost", "/");
    assert_eq!(status, 200);
    for words in [
        "5 measurements of 2 plans",
        "href=\"/runs/deep/three\"",
        "&lt;i&gt;other",
        "later: ",
        "written by a newer Plimsoll",
        "Compare A with B",
    ] {
        assert!(list.contains(words), "{words} in\n{list}");
    }
    assert!(!list.contains("<i>other"), "names are text");
    let (status, page) = get(&server, "127.0.0.1:1", "/runs/deep/three");
    assert_eq!(status, 200);
    assert!(page.contains("class=\"home\" href=\"/\""), "{page}");
    let (status, page) = get(&server, "localhost", "/compare?a=one&b=deep%2Fthree");
    assert_eq!(status, 200);
    assert!(page.contains("What differs"), "{page}");
    for (path, status) in [
        ("/runs/../steady.txt", 404),
        ("/runs/later/run.json", 404),
        ("/runs/six", 404),
        ("/etc/passwd", 404),
        ("/runs/later", 422),
        ("/compare?a=one", 422),
        ("/compare?a=one&b=one", 422),
    ] {
        assert_eq!(get(&server, "localhost", path).0, status, "{path}");
    }
    // Another site whose name resolves here gets nothing.
    assert_eq!(get(&server, "runs.example.org", "/").0, 421);
    let (code, _) = server.stop();
    assert_eq!(code, 0);
}

#[test]
fn list_skips_intervals_without_objectives() {
    let place = folder_of_runs();
    let broken = place.path("runs/four/intervals.jsonl");
    fs::write(broken, "no interval\n").expect("written");
    let judged = place.path("runs/one/plan.toml");
    let mut plan = fs::read_to_string(&judged).expect("a plan");
    plan.push_str("\n[objective]\n\"p99\" = \"< 1s\"\n");
    fs::write(judged, plan).expect("written");
    let record = place.path("runs/two/run.json");
    let whole = fs::read_to_string(&record).expect("a run");
    let many = whole.replace("\"ok\": 400", "\"ok\": 18446744073709551615");
    fs::write(record, many).expect("written");
    let server = start_view(&place);
    let (status, list) = get(&server, "localhost", "/");
    assert_eq!(status, 200);
    assert!(list.contains("href=\"/runs/four\""), "{list}");
    assert!(!list.contains("four: "), "{list}");
    assert!(list.contains("more than 2^60"), "{list}");
    // The page that is opened reads all of it.
    assert_eq!(get(&server, "localhost", "/runs/four").0, 422);
    assert_eq!(server.stop().0, 0);
}

#[test]
fn external_symlinks_are_not_followed() {
    let place = folder_of_runs();
    let secret = place.path("secret");
    fs::write(&secret, "a-secret-of-this-machine").expect("written");
    for (run, file) in [("one", "plan.toml"), ("two", "run.json")] {
        let path = place.path(&format!("runs/{run}/{file}"));
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&secret, &path).expect("linked");
    }
    let server = start_view(&place);
    let (status, page) = get(&server, "localhost", "/runs/one");
    assert_eq!(status, 422);
    assert!(page.contains("a link, not a file"), "{page}");
    // A folder without a record is not a run.
    assert_eq!(get(&server, "localhost", "/runs/two").0, 404);
    for path in ["/", "/runs/one", "/compare?a=one&b=four"] {
        let (_, page) = get(&server, "localhost", path);
        assert!(!page.contains("a-secret-of-this-machine"), "{path}: {page}");
    }
    assert_eq!(server.stop().0, 0);
}

#[test]
fn browser_lists_and_compares_runs() {
    let place = folder_of_runs();
    let server = start_view(&place);
    let url = format!("http://{}/", server.address());
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("view");
    fs::create_dir_all(&pictures).expect("a folder");
    let mut browser = Browser::start();
    for (name, width, dark) in [
        ("phone", 390, false),
        ("desk", 1440, false),
        ("dark", 1440, true),
    ] {
        let look = Viewport {
            name,
            width,
            dark,
            print: false,
        };
        let seen = browser.open_at(&url, look);
        assert_eq!(seen.problems, [""; 0], "{name}");
        assert_eq!(seen.content_width, u64::from(width), "{name}");
        fs::write(pictures.join(format!("{name}.png")), seen.picture).expect("kept");
    }
    browser.navigate(
        "document.querySelector('input[name=a][value=one]').checked = true; \
         document.querySelector('input[name=b][value=\"deep/three\"]').checked = true; \
         document.querySelector('form').requestSubmit()",
    );
    let heading = browser.text("document.querySelector('h2').textContent");
    assert_eq!(heading, "What differs");
    browser.navigate("document.querySelector('a.home').click()");
    assert_eq!(browser.text("location.pathname"), "/");
}

#[test]
fn incomplete_requests_do_not_block_server() {
    let place = folder_of_runs();
    let server = start_view(&place);
    let halves: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).expect("connected");
            stream.write_all(b"GET / HTTP/1.1\r\nHost:").expect("asked");
            stream
        })
        .collect();
    assert_eq!(get(&server, "localhost", "/").0, 200);
    let (code, _) = server.stop();
    assert_eq!(code, 0);
    drop(halves);
}

#[test]
fn missing_folder_is_reported_immediately() {
    let place = Place::new();
    let output = place.run(&["view"]);
    assert_eq!(output.status.code(), Some(2));
    let text = support::stderr_of(&output);
    assert!(text.contains("there is no folder runs"), "{text}");
}
