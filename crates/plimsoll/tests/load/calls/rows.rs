//! Rows of journeys whose steps go over HTTP, Bolt and a plugin's protocol: each order of rows, divided among processes
//! and shards.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use super::built;
use super::path_counts::count_requests;
use super::support::{Place, Server, stderr_of, wait};

const ROWS: u64 = 10;

/// A folder with the rows `u0` to `u9` and a plugin, and servers that echo over Bolt and the plugin's protocol.
struct EchoServers {
    place: Place,
    bolt: Server,
    plugin: Server,
}

impl EchoServers {
    fn start() -> EchoServers {
        let place = Place::new();
        let built = built::build_c_example(&place.path("."));
        fs::rename(built, place.path("c.so")).expect("c.so");
        let rows: String = (0..ROWS).map(|n| format!("u{n}\n")).collect();
        fs::write(place.path("users.csv"), format!("user\n{rows}")).expect("a writable folder");
        let (bolt, plugin) = (place.serve(&["bolt"]), place.serve(&["plugin", "c.so"]));
        EchoServers {
            place,
            bolt,
            plugin,
        }
    }

    /// Writes a plan whose users send their row over Bolt and the plugin's protocol, and then request a path of what
    /// both echoed and the row itself.
    fn write_plan(&self, http: &str, order: &str, load: &str) {
        let plan = format!(
            r#"
target = "http://{http}"
[rows]
file = "users.csv"
order = "{order}"
[load]
{load}
[[steps]]
name = "bolt"
target = "sofa://{}"
service = "com.alipay.test.TestService:1.0"
method = "echoStr"
arguments = '["{{{{row.user}}}}"]'
take.bolt = ""
[[steps]]
name = "plugin"
target = "plugin://{}"
codec = "c.so"
payload = '{{"user": "{{{{row.user}}}}"}}'
take.plugin = "/user"
[[steps]]
name = "http"
path = "/{{{{bolt}}}}/{{{{plugin}}}}/{{{{row.user}}}}"
"#,
            self.bolt.address(),
            self.plugin.address(),
        );
        fs::write(self.place.path("plan.toml"), plan).expect("a writable folder");
    }

    /// Runs the plan in a layout. Returns how many users had each row.
    #[track_caller]
    fn count_rows(&self, layout: &str, order: &str, load: &str) -> BTreeMap<String, u64> {
        let (address, counts) = count_requests();
        self.write_plan(&address.to_string(), order, load);
        for folder in ["run", "meeting"] {
            let _ = fs::remove_dir_all(self.place.path(folder));
        }
        let words = ["run", "plan.toml", "-q", "--out", "run"];
        match layout {
            "shards" => {
                let url = format!("file://{}", self.place.path("meeting").display());
                let shards = ["0", "1"].map(|shard| {
                    let mut command = self.place.command(&words);
                    command
                        .args(["--rendezvous", &url, "--run-id", "r1"])
                        .args(["--shards", "2", "--shard", shard])
                        .stdout(Stdio::null());
                    command.spawn().expect("a shard")
                });
                for mut shard in shards {
                    assert_eq!(wait(&mut shard), 0, "{order}");
                }
            }
            "processes" => {
                self.place
                    .expect(0, &[&words[..], &["--processes", "2"]].concat());
            }
            _ => {
                self.place.expect(0, &words);
            }
        }
        let counts = counts.lock().expect("counts");
        let rows = counts.iter().map(|(path, count)| {
            let names: Vec<&str> = path.split('/').skip(1).collect();
            assert_eq!(names, [names[0]; 3], "{layout} {order}");
            (names[0].to_owned(), *count)
        });
        rows.collect()
    }
}

/// Returns the rows `u0` up to before `u` and this number, each used so many times.
fn each(rows: u64, times: u64) -> BTreeMap<String, u64> {
    (0..rows).map(|n| (format!("u{n}"), times)).collect()
}

#[test]
fn processes_and_shards_divide_rows() {
    let servers = EchoServers::start();
    let all = "clients = 4\ncalls = 30";
    let random = servers.count_rows("one process", "random", all);
    assert_eq!(random.values().sum::<u64>(), 30);
    assert_ne!(random, each(ROWS, 3));
    for layout in ["processes", "shards"] {
        let rows = |order: &str, load: &str| servers.count_rows(layout, order, load);
        // Rows begin again after the last one.
        assert_eq!(rows("round-robin", all), each(ROWS, 3), "{layout}");
        assert_eq!(
            rows("unique", "clients = 4\ncalls = 10"),
            each(ROWS, 1),
            "{layout}"
        );
        let arriving = "rate = \"20/s\"\ncalls = 10";
        assert_eq!(rows("unique", arriving), each(ROWS, 1), "{layout}");
        assert_eq!(rows("random", all), random, "{layout}");
        let kept = rows("client", all);
        assert_eq!(kept.values().sum::<u64>(), 30, "{layout}");
        assert!(kept.keys().eq(each(4, 1).keys()), "{layout}: {kept:?}");
    }
}

#[test]
fn unfit_orders_of_rows_are_rejected() {
    let servers = EchoServers::start();
    for (order, load, problem) in [
        (
            "unique",
            "clients = 4\ncalls = 11",
            "needs one row per call",
        ),
        ("client", "clients = 11", "only 10 rows for 11 clients"),
        (
            "client",
            "rate = \"5/s\"\nduration = \"1s\"",
            "for journeys of load.clients",
        ),
    ] {
        servers.write_plan("127.0.0.1:1", order, load);
        let refused = servers.place.run(&["run", "plan.toml", "--dry-run"]);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{load}: {said}");
        assert!(
            said.contains("rows.order") && said.contains(problem),
            "{said}"
        );
    }
}

/// The rows belong to the plan's own target, too.
#[test]
fn bolt_steps_use_rows() {
    let servers = EchoServers::start();
    let plan = format!(
        r#"
target = "sofa://{}"
[rows]
file = "users.csv"
order = "unique"
[call.bolt]
service = "com.alipay.test.TestService:1.0"
method = "echoStr"
[[steps]]
name = "first"
arguments = '["{{{{row.user}}}}"]'
take.user = ""
[[steps]]
name = "second"
if = "user"
arguments = '["{{{{row.user}}}}={{{{user}}}}"]'
take.both = {{ regex = '^"u([0-9])=u[0-9]"$' }}
[load]
clients = 2
calls = 10
"#,
        servers.bolt.address()
    );
    fs::write(servers.place.path("plan.toml"), &plan).expect("a writable folder");
    servers
        .place
        .expect(0, &["run", "plan.toml", "-q", "--out", "run"]);
    let saved = servers.place.read("run/plan.toml");
    assert!(saved.contains("order = \"unique\""), "{saved}");
    let more = plan.replace("calls = 10", "calls = 11");
    fs::write(servers.place.path("plan.toml"), more).expect("a writable folder");
    let refused = servers.place.run(&["run", "plan.toml", "--dry-run"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_of(&refused));
}
