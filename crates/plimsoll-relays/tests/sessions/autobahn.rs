//! The Autobahn testsuite, both ways: its clients against the gateway's echo mode, its
//! server against a client made of the load's codec.
//!
//! It needs Python 2.7. Where `tests/setup.sh` finds none it notes that, and this says so
//! aloud; the cases of [`crate::conformance`] run everywhere.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::conformance::{echo_as_client, echo_up_to};

const LIMIT: Duration = Duration::from_secs(600);

/// Left out: 6.4, whose pauses measure how early bad UTF-8 is refused (the table has that);
/// 9, megabytes to measure speed.
const LEFT_OUT: [&str; 2] = ["6.4.*", "9.*"];
/// The first cases of each group of 12 and 13, with messages of up to 4 KiB. With longer ones, in
/// a build that is not optimized, the groups take more than an hour.
const SHORT: u32 = 5;
const CASES: u32 = 18;
/// An extension that the client does not offer.
const COMPRESSED: [&str; 2] = ["12.*", "13.*"];

/// As a folder of packages, and not only on the path: zope is one in several parts.
const RUN: &str = "import site, sys; site.addsitedir(sys.argv.pop(1)); \
                   from autobahntestsuite.wstest import run; run()";

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers")
}

/// The suite, ended with the test.
struct Suite(Child);

impl Drop for Suite {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The suite's command; `None` where there is no Python 2.7 for it.
fn wstest(arguments: &[&str], dir: &Path) -> Option<Suite> {
    let python = peers().join("autobahn/python");
    if !python.exists() {
        let note = std::fs::read_to_string(peers().join("stamps/autobahn")).unwrap_or_default();
        assert!(
            note.contains("no Python 2.7"),
            "{} is missing: tests/setup.sh peers makes it",
            python.display()
        );
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN, no Python 2.7: the Autobahn testsuite"
        );
        return None;
    }
    let child = Command::new(python)
        .args(["-c", RUN])
        .arg(peers().join("autobahn/site"))
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    Some(Suite(child))
}

/// The suite gives an end a second to answer, which a late machine may not: what is bad is bad three
/// times.
async fn in_order(run: impl AsyncFn() -> Option<Vec<String>>) {
    for attempt in 1.. {
        let bad = run().await.unwrap_or_default();
        if bad.is_empty() {
            return;
        }
        assert!(attempt < 3, "{}", bad.join("\n"));
    }
}

/// The verdicts of a report that are not good ones.
fn judge(dir: &Path, least: usize) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("reports/index.json")).unwrap();
    let report: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&text).unwrap();
    let cases = report.values().next().unwrap();
    let bad: Vec<String> = cases
        .iter()
        .filter(|(_, verdict)| {
            let good = |key: &str| {
                let word = verdict[key].as_str().unwrap_or_default();
                ["OK", "INFORMATIONAL", "NON-STRICT"].contains(&word)
            };
            !good("behavior") || !good("behaviorClose")
        })
        .map(|(case, verdict)| format!("{case}: {verdict}"))
        .collect();
    let strict = cases
        .values()
        .filter(|v| v["behavior"] != "NON-STRICT")
        .count();
    assert!(
        strict > least || !bad.is_empty(),
        "{strict} of {}",
        cases.len()
    );
    bad
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn autobahn_finds_the_gateway_in_order() {
    in_order(the_gateway).await;
}

/// `None`: there is no suite.
async fn the_gateway() -> Option<Vec<String>> {
    // Compressed messages of 128 KiB.
    let gateway = echo_up_to(256 << 10);
    let dir = tempfile::tempdir().unwrap();
    let groups = (1..=5).map(|n| (12, n)).chain((1..=7).map(|n| (13, n)));
    let long = groups.flat_map(|(section, group)| {
        let long = SHORT + 1..=CASES;
        long.map(move |case| format!("{section}.{group}.{case}"))
    });
    let left_out: Vec<String> = LEFT_OUT
        .iter()
        .map(|s| (*s).to_owned())
        .chain(long)
        .collect();
    let spec = serde_json::json!({
        "outdir": "reports",
        "servers": [{ "agent": "gateway", "url": format!("ws://{}", gateway.address) }],
        "cases": ["*"],
        "exclude-cases": left_out,
        "exclude-agent-cases": {},
    });
    std::fs::write(dir.path().join("spec.json"), spec.to_string()).unwrap();
    let mut suite = wstest(&["-m", "fuzzingclient", "-s", "spec.json"], dir.path())?;
    let ending = async {
        loop {
            if let Some(ended) = suite.0.try_wait().unwrap() {
                return ended;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = timeout(LIMIT, ending).await.expect("an end in time");
    assert!(ended.success());
    Some(judge(dir.path(), 200 + 60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn autobahn_finds_the_client_in_order() {
    in_order(the_client).await;
}

async fn the_client() -> Option<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let left_out = [&LEFT_OUT[..], &COMPRESSED].concat();
    let spec = serde_json::json!({
        "url": format!("ws://{address}"),
        "outdir": "reports",
        "cases": ["*"],
        "exclude-cases": left_out,
        "exclude-agent-cases": {},
    });
    std::fs::write(dir.path().join("spec.json"), spec.to_string()).unwrap();
    let arguments = ["-m", "fuzzingserver", "-u", "0", "-s", "spec.json"];
    let mut suite = wstest(&arguments, dir.path())?;
    let all = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(suite.0.try_wait().unwrap().is_none(), "the suite has ended");
            sleep(Duration::from_millis(50)).await;
        }
        let count = echo_as_client(address, "/getCaseCount").await;
        let count: u32 = String::from_utf8(count).unwrap().parse().unwrap();
        assert!(count > 200, "{count}");
        for case in 1..=count {
            echo_as_client(address, &format!("/runCase?case={case}&agent=load")).await;
        }
        echo_as_client(address, "/updateReports?agent=load").await;
    };
    timeout(LIMIT, all).await.expect("an end in time");
    drop(suite);
    Some(judge(dir.path(), 200))
}
