//! Tests of the steps of scripts.

use super::*;

const K6: &str = r#"
import http from 'k6/http';
const base = 'http://a.test';
export function setup() { http.get('http://other.test/setup'); }
export default function () {
  sleep(0.5);
  http.get(`${base}/items`, { tags: { name: 'list, (all)' } });
  // http.get('http://a.test/left-out');
  sleep(1); sleep(randomIntBetween(1, 2));
  http.post(base + '/orders', JSON.stringify({ a: [1, 2] }));
  http.request('put', 'https://b.test/x?y');
  sleep(pause());
  http.get(`${base}/items`);
  http.get(`${base}/item/${id}`);
  sleep(0.25);
}
export function teardown() { http.del(`${base}/all`); sleep(9); }
"#;

#[test]
fn requests_of_k6_are_steps_with_pauses() {
    let user = read_k6_script(K6);
    assert_eq!(user.requests.len(), 4);
    assert_eq!(
        user.unread,
        ["the pause `pause()`", "the request ``${base}/item/${id}``"]
    );
    // The pauses before the first request and after the last one.
    assert_eq!(user.think(), Some((Duration::from_millis(750), false)));
    let load = [
        "--clients",
        "5",
        "--duration",
        "10s",
        "--objective",
        "p95 < 200ms",
    ];
    let plan = user
        .to_plan(None, &load.map(str::to_owned))
        .expect("a plan");
    let steps = plan.split_once("target").expect("a target").1;
    assert_eq!(
        steps,
        " = \"http://a.test\"\n\n[[steps]]\npath = \"/items\"\n\
             \n[[steps]]\nmethod = \"POST\"\npath = \"/orders\"\npause = \"2s to 3s\"\n\
             \n[[steps]]\ntarget = \"https://b.test\"\nmethod = \"PUT\"\npath = \"/x?y\"\n\
             \n[[steps]]\nname = \"GET /items 2\"\npath = \"/items\"\n\
             \n[load]\nclients = 5\nduration = \"10s\"\n\
             \n[objective]\n\"p95\" = \"< 200ms\"\n"
    );
    let mut line = LineBuilder::default();
    line.plan = Some(plan.clone());
    let said = user.describe(&line);
    assert!(
        said.starts_with("; the plan above has its requests"),
        "{said}"
    );
    assert!(said.contains("; not read: the pause `pause()`, "), "{said}");
    assert!(plan.contains("# Not read: the pause `pause()`\n"), "{plan}");
}

#[test]
fn secrets_of_queries_are_variables() {
    let script =
        "http.get('http://a.test/x?api_key=s1');\nhttp.get('http://a.test/?api_key=s2');\n";
    let plan = read_k6_script(script).to_plan(None, &[]).expect("a plan");
    assert!(
        plan.contains("path = \"/x?api_key=$PLIMSOLL_QUERY_API_KEY\"\n"),
        "{plan}"
    );
    assert!(
        plan.contains("path = \"/?api_key=$PLIMSOLL_QUERY_API_KEY_2\"\n"),
        "{plan}"
    );
}

#[test]
fn comment_blocks_of_k6_are_not_read() {
    let script = r#"
const PAUSE = 0.5;
export default function () {
  /* http.get('http://other.test/old');
     sleep(3); */
  http.get('http://a.test/*');
  sleep(PAUSE);
  http.asyncRequest('GET', 'http://a.test/*/x');
}
"#;
    let user = read_k6_script(script);
    let requests: Vec<_> = user
        .requests
        .iter()
        .map(|request| (&*request.url, request.pause))
        .collect();
    let pause = PauseSpec::Fixed(Duration::from_millis(500));
    let expected = [
        ("http://a.test/*", None),
        ("http://a.test/*/x", Some(pause)),
    ];
    assert_eq!(requests, expected);
    let script = "function f() { http.get('http://a.test'); }\nexport default () => { f(); }\n";
    let unread = read_k6_script(script).unread;
    assert_eq!(unread, ["functions that the default function calls"]);
    let script = "class A(SequentialTaskSet):\n    @task\n    def b(self):\n        pass\n";
    let unread = read_locust_script(script).unread;
    assert_eq!(unread, ["the order of a SequentialTaskSet"]);
}

#[test]
fn hosts_of_environment_are_given_or_default() {
    let script = r#"
const base = __ENV.BASE || 'http://a.test';
export default function () {
  http.get(`${base}/items`);
  http.get(`${__ENV.OTHER}/x`);
}
"#;
    let urls = |variables: &[&str]| {
        let variables: Vec<String> = variables.iter().map(|text| (*text).to_owned()).collect();
        let user = read_k6_script(&fill_k6_environment(script, &variables));
        let urls = user.requests.into_iter().map(|request| request.url);
        urls.collect::<Vec<_>>()
    };
    assert_eq!(urls(&["BAS=b", "BASE"]), ["http://a.test/items"]);
    assert_eq!(
        urls(&["BASE=http://b.test", "OTHER=http://c.test"]),
        ["http://b.test/items", "http://c.test/x"]
    );
    let script = "base = os.getenv(\"BASE\", \"http://a.test\")\nself.client.get(base + \"/x\")\n";
    let user = read_locust_script(script);
    assert_eq!(user.first_url().as_deref(), Some("http://a.test/x"));
}

#[test]
fn tasks_of_locust_are_branches() {
    let script = r#"
class Visitor(HttpUser):
    wait_time = between(1, 3)
    host = "http://a.test"

    def on_start(self):
        self.client.post("/login")

    @task(3)
    def look(self):
        self.client.get("/items")
        gevent.sleep(0.5)
        self.client.get(f"/item/{item}")

    @task
    def order(self):
        self.client.request("POST", url="/orders", json={"a": 1})
        time.sleep(1)
        with self.client.get("/done", catch_response=True) as done:
            if done.status_code != 200:
                done.failure("no")
"#;
    let user = read_locust_script(script);
    assert_eq!(
        user.unread,
        [
            "on_start",
            "the request `f\"/item/{item}\"`",
            "a pause of 500ms at an end of a task",
            "conditions and loops"
        ]
    );
    assert_eq!(user.think(), Some((Duration::from_secs(2), true)));
    let mut line = LineBuilder::default();
    assert!(user.describe(&line).starts_with("; not read: on_start, "));
    line.add("--think", "2s");
    let said = user.describe(&line);
    assert!(said.starts_with("; the random pauses between"), "{said}");
    let plan = user.to_plan(Some("http://a.test/"), &[]).expect("a plan");
    let steps = plan.split_once("\n\n").expect("steps").1;
    assert_eq!(
        steps,
        "[[steps]]\npath = \"/items\"\nweight = 3\nbranch = \"task 1\"\n\
             \n[[steps]]\nmethod = \"POST\"\npath = \"/orders\"\nweight = 1\nbranch = \"task 2\"\n\
             \n[[steps]]\npath = \"/done\"\npause = \"1s\"\nbranch = \"task 2\"\n\
             \n[load]\n"
    );
}

#[test]
fn pacing_of_locust_is_a_rate() {
    for (wait_time, rate) in [
        ("constant_pacing(5)", Some(2.0)),
        ("constant_throughput(0.25)", Some(2.5)),
        ("constant_pacing(3)", Some(3.333)),
        ("constant(1)", None),
        ("constant_pacing(0)", None),
    ] {
        let user = read_locust_script(&format!("    wait_time = locust.{wait_time}\n"));
        assert_eq!(user.rate(10), rate, "{wait_time}");
    }
    let user = read_locust_script("    wait_time = my_own\n");
    assert_eq!(user.unread, ["wait_time"]);
    assert_eq!(user.to_plan(None, &[]), None);
}
