//! The Autobahn test suite in both directions: its clients against the gateway's echo mode, and its
//! server against a client built from the load generator's codec.
//!
//! It needs Python 2.7. If `tests/setup.sh` found none it recorded that, and this test prints the
//! note; the cases of [`crate::conformance`] run everywhere.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::conformance::{echo_as_client, echo_gateway_up_to};
use crate::ports::free_port;

/// A run takes minutes, most of them spent in the suite itself.
const SUITE_TIMEOUT: Duration = Duration::from_secs(3600);
/// The cases with compressed messages, in both directions.
const MAX_MESSAGE: usize = 256 << 10;

/// Excluded cases: 6.4, whose pauses measure how early invalid UTF-8 is refused (covered by the
/// table), and 9, which measures speed with megabytes of data.
const EXCLUDED_CASES: [&str; 2] = ["6.4.*", "9.*"];
/// Least number of cases that must pass: 216 with compression (12 and 13), and others.
const MIN_PASSED_CASES: usize = 216 + 200;

/// Loads the site folder as packages, because zope consists of several parts. Compressed messages
/// are independent of each other and long ones dominate the suite's time, so a case sends 100
/// instead of 1000 messages of more than 4 KiB.
const RUN: &str = "import site, sys
site.addsitedir(sys.argv.pop(1))
from autobahntestsuite.case import Cases
for case in Cases:
    if getattr(case, 'LEN', 0) > 4096:
        case.COUNT = 100
from autobahntestsuite.wstest import run
run()";

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers")
}

/// The suite's process, killed when dropped.
struct Suite(Child);

impl Drop for Suite {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the suite; returns `None` without Python 2.7.
fn start_suite(arguments: &[&str], dir: &Path) -> Option<Suite> {
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

/// A case and its verdict, if it did not pass.
type FailedCase = (String, String);

/// Runs all cases. The suite expects the closing handshake within a second, which a busy machine
/// may miss: failed cases run again, and one that fails three times fails the test.
async fn run_until_passed(run: impl AsyncFn(&[String]) -> Option<SuiteReport>) {
    let mut cases = vec!["*".to_owned()];
    for attempt in 1.. {
        let Some(SuiteReport { bad, strict }) = run(&cases).await else {
            return;
        };
        if bad.is_empty() {
            assert!(attempt > 1 || strict > MIN_PASSED_CASES, "{strict} cases");
            return;
        }
        let of_each = bad
            .iter()
            .map(|(case, verdict)| format!("{case}: {verdict}"));
        let verdicts: Vec<String> = of_each.collect();
        assert!(attempt < 3, "{}", verdicts.join("\n"));
        cases = bad.into_iter().map(|(case, _)| case).collect();
    }
}

struct SuiteReport {
    bad: Vec<FailedCase>,
    /// Cases that passed strictly.
    strict: usize,
}

fn read_report(dir: &Path) -> SuiteReport {
    let text = std::fs::read_to_string(dir.join("reports/index.json")).unwrap();
    let agents: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&text).unwrap();
    let cases = agents.values().next().unwrap();
    let bad = cases
        .iter()
        .filter(|(_, verdict)| {
            let good = |key: &str| {
                let word = verdict[key].as_str().unwrap_or_default();
                ["OK", "INFORMATIONAL", "NON-STRICT"].contains(&word)
            };
            !good("behavior") || !good("behaviorClose")
        })
        .map(|(case, verdict)| (case.clone(), verdict.to_string()))
        .collect();
    let strict = cases
        .values()
        .filter(|verdict| verdict["behavior"] == "OK")
        .count();
    SuiteReport { bad, strict }
}

#[ignore = "it takes minutes: make test-peers runs it"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_passes_autobahn_suite() {
    run_until_passed(the_gateway).await;
}

/// Returns `None` if the suite is not installed.
async fn the_gateway(cases: &[String]) -> Option<SuiteReport> {
    let gateway = echo_gateway_up_to(MAX_MESSAGE);
    let dir = tempfile::tempdir().unwrap();
    let spec = serde_json::json!({
        "outdir": "reports",
        "servers": [{ "agent": "gateway", "url": format!("ws://{}", gateway.address) }],
        "cases": cases,
        "exclude-cases": EXCLUDED_CASES,
        "exclude-agent-cases": {},
    });
    std::fs::write(dir.path().join("spec.json"), spec.to_string()).unwrap();
    let mut suite = start_suite(&["-m", "fuzzingclient", "-s", "spec.json"], dir.path())?;
    let ending = async {
        loop {
            if let Some(ended) = suite.0.try_wait().unwrap() {
                return ended;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = timeout(SUITE_TIMEOUT, ending)
        .await
        .expect("an end in time");
    assert!(ended.success());
    Some(read_report(dir.path()))
}

#[ignore = "it takes minutes: make test-peers runs it"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_passes_autobahn_suite() {
    run_until_passed(the_client).await;
}

async fn the_client(cases: &[String]) -> Option<SuiteReport> {
    let dir = tempfile::tempdir().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let spec = serde_json::json!({
        "url": format!("ws://{address}"),
        "outdir": "reports",
        "cases": cases,
        "exclude-cases": EXCLUDED_CASES,
        "exclude-agent-cases": {},
    });
    std::fs::write(dir.path().join("spec.json"), spec.to_string()).unwrap();
    let arguments = ["-m", "fuzzingserver", "-u", "0", "-s", "spec.json"];
    let mut suite = start_suite(&arguments, dir.path())?;
    let all = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(suite.0.try_wait().unwrap().is_none(), "the suite has ended");
            sleep(Duration::from_millis(50)).await;
        }
        let count = echo_as_client(address, "/getCaseCount").await;
        let count: u32 = String::from_utf8(count).unwrap().parse().unwrap();
        for case in 1..=count {
            echo_as_client(address, &format!("/runCase?case={case}&agent=load")).await;
        }
        echo_as_client(address, "/updateReports?agent=load").await;
    };
    timeout(SUITE_TIMEOUT, all).await.expect("an end in time");
    drop(suite);
    Some(read_report(dir.path()))
}
