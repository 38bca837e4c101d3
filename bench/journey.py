#!/usr/bin/env python3
"""Journeys side by side: steps per client CPU-second of Plimsoll, k6 and Locust.

Users log in, list, pick one of what was listed, and order it, over HTTP/1.1 from `plimsoll serve http`; each step uses
a value of the one before, and each user has a connection of its own. The clients take turns in every repetition, and
the figures are medians; a row counts only if all its steps succeeded. Over HTTP/2, which k6 speaks only with TLS, both
use the same server over TLS, and each user makes its steps many times over a connection, so that handshakes do not
decide; Locust has no HTTP/2. Then:

- what a step over HTTP/2 with one value taken costs beside the same call of `plimsoll http`
- the memory of each of 100,000 users in flight who wait for a connection

    bench/journey.py                 all of it
    bench/journey.py --only steps    one of steps, cost, memory
    bench/journey.py --protocol h2   steps over HTTP/2 with TLS, of Plimsoll and k6
    bench/journey.py --stall         the p99 of a step whose server freezes for 500 ms, beside the schedule's
"""

import argparse
import json
import sys

import side_by_side as bench

USERS = 10
STEPS = 4
JOURNEYS = {"plimsoll": 40_000, "k6": 2_000, "locust": 1_500}


class Wire:
    """How the clients speak to the server: the protocol, the rounds of steps over one connection, and the journeys."""

    def __init__(self, title, scheme, proto, rounds, journeys):
        self.title, self.scheme, self.proto = title, scheme, proto
        self.rounds, self.journeys = rounds, journeys

    @property
    def is_secured(self):
        return self.scheme == "https"


WIRES = {
    "h1": Wire("HTTP/1.1", "http", "HTTP/1.1", 1, JOURNEYS),
    "h2": Wire("HTTP/2 with TLS", "https", "HTTP/2.0", 50, {"plimsoll": 800, "k6": 40}),
}
# Minimum steps per CPU-second of Plimsoll over HTTP/1.1, as a multiple of the other tool's; there is no goal for
# Locust, nor for HTTP/2.
RATIO_GOALS = {"k6": 50}
# Maximum CPU of a step with a value, as a multiple of a plain call's.
COST_GOAL = 2.5
# Maximum memory of a waiting user, in bytes.
MEMORY_GOAL = 2_000
WAITING_USERS = 100_000

LOGIN = '{"token": "t-1", "user": "ada"}'
LIST = '{"items": [{"id": 3}, {"id": 5}, {"id": 8}]}'

PLAN = """
name   = "journey"
target = "SCHEME://ADDRESS"
SETTINGS
[[steps]]
name   = "log in"
loop   = { name = "round", repeat = ROUNDS }
method = "POST"
path   = "/echo"
body   = 'LOGIN'
take   = { token = "/token" }
[[steps]]
name    = "list"
loop    = "round"
method  = "POST"
path    = "/echo"
body    = 'LIST'
headers = { authorization = "Bearer {{token}}" }
take    = { item = "/items/1/id" }
[[steps]]
name    = "pick"
loop    = "round"
path    = "/bytes/100?item={{item}}"
headers = { authorization = "Bearer {{token}}" }
[[steps]]
name    = "order"
loop    = "round"
method  = "POST"
path    = "/echo"
body    = '{"order": {{item}}}'
headers = { authorization = "Bearer {{token}}" }
take    = { order = "/order" }
[load]
clients = USERS
calls   = JOURNEYS
"""

K6 = """
import http from 'k6/http';
import { Counter } from 'k6/metrics';
const done = new Counter('steps_done');
const json = { 'content-type': 'application/json' };
export const options = { noVUConnectionReuse: true, discardResponseBodies: false, insecureSkipTLSVerify: true,
  scenarios: { users: { executor: 'shared-iterations', vus: USERS, iterations: JOURNEYS, maxDuration: '5m' } } };
const ok = (response) => {
  if (response.status === 200 && response.proto === 'PROTO') { done.add(1); }
  return response;
};
const shop = () => {
  const login = ok(http.post('SCHEME://ADDRESS/echo', 'LOGIN', { headers: json }));
  const headers = { authorization: `Bearer ${login.json('token')}` };
  const list = ok(http.post('SCHEME://ADDRESS/echo', 'LIST', { headers: { ...json, ...headers } }));
  const item = list.json('items.1.id');
  ok(http.get(`SCHEME://ADDRESS/bytes/100?item=${item}`, { headers }));
  const order = ok(http.post('SCHEME://ADDRESS/echo', `{"order": ${item}}`, { headers: { ...json, ...headers } }));
  if (order.json('order') !== item) { throw new Error('no order'); }
};
export default () => { for (let round = 0; round < ROUNDS; round++) { shop(); } };
"""

# The faster of Locust's two clients, with a session, and so a connection, of its own for each journey.
LOCUST = """
import itertools
import gevent
from locust import task, constant
from locust.exception import StopUser
from locust.contrib.fasthttp import FastHttpUser
journeys = itertools.count(1)
class Shopper(FastHttpUser):
    host = 'http://ADDRESS'
    wait_time = constant(0)
    @task
    def shop(self):
        n = next(journeys)
        if n > JOURNEYS:
            # The last user ends the load, from outside of its own greenlet.
            if n == JOURNEYS + USERS:
                gevent.spawn_later(0.1, self.environment.runner.quit)
            raise StopUser()
        self.client.client.clientpool.close()
        token = self.client.post('/echo', data='LOGIN').json()['token']
        headers = {'authorization': f'Bearer {token}'}
        item = self.client.post('/echo', data='LIST', headers=headers).json()['items'][1]['id']
        self.client.get(f'/bytes/100?item={item}', headers=headers, name='/bytes')
        order = self.client.post('/echo', data='{"order": %d}' % item, headers=headers).json()
        assert order['order'] == item
"""


def fill(text, **values):
    """Returns the text with upper-case words replaced."""
    for word, value in {"LOGIN": LOGIN, "LIST": LIST, "USERS": USERS, **values}.items():
        text = text.replace(word, str(value))
    return text


def locust():
    """Returns the path of Locust, in .peers/locust."""
    found = bench.PEERS / "locust" / "bin" / "locust"
    if not found.exists():
        sys.exit(f"{found} is missing: run `make setup-bench`, or leave it out with --clients plimsoll,k6")
    return found


def k6_command(script, scratch):
    (scratch / "journey.js").write_text(script, encoding="utf-8")
    return [
        bench.tool("k6"), "run", "--quiet", "--no-usage-report", "--log-output", "none",
        "--summary-trend-stats", "p(50),p(99),max", "--summary-export", scratch / "k6.json", scratch / "journey.js",
    ]


def run_plan(plan, scratch, folder, name="plan.toml"):
    (scratch / name).write_text(plan, encoding="utf-8")
    return [bench.plimsoll(), "run", scratch / name, "--out", folder, "--json", "-q"]


def steps_command(name, wire, address, journeys, scratch, folder):
    settings = f'[call.http]\nversion = "2"\n[tls]\nca = "{scratch}/certs/ca.crt"' if wire.is_secured else ""
    values = {"SCHEME": wire.scheme, "ADDRESS": address, "SETTINGS": settings, "PROTO": wire.proto,
              "ROUNDS": wire.rounds, "JOURNEYS": journeys}
    if name == "plimsoll":
        return run_plan(fill(PLAN, **values), scratch, folder)
    if name == "k6":
        return k6_command(fill(K6, **values), scratch)
    (scratch / "locustfile.py").write_text(fill(LOCUST, **values), encoding="utf-8")
    return [
        locust(), "-f", scratch / "locustfile.py", "--headless", "-u", USERS, "-r", USERS, "--only-summary",
        "--json", "--loglevel", "WARNING", "--exit-code-on-error", 1,
    ]


def problem_of(name, wire, measured, journeys, scratch):
    """Returns the problem of a run, or None."""
    wanted = journeys * wire.rounds * STEPS
    if measured.exit != 0:
        said = (measured.errors.strip() or measured.out.strip()).splitlines()
        return f"exit {measured.exit}: {' / '.join(said[-3:])[-200:]}"
    if name == "plimsoll":
        total = json.loads(measured.out)["runs"][0]["total"]
        ok = total["measures"]["counts"]["users_ok"]
        return None if (total["ok"], ok) == (wanted, journeys) else f"{total['ok']} steps, {ok} users ok"
    if name == "k6":
        with open(scratch / "k6.json", encoding="utf-8") as file:
            metrics = json.load(file)["metrics"]
        done = metrics.get("steps_done", {}).get("count", 0)
        return None if done == wanted else f"{done} of {wanted} steps"
    entries = json.loads(measured.out)
    done = sum(entry["num_requests"] for entry in entries)
    failed = sum(entry["num_failures"] for entry in entries)
    return None if (done, failed) == (wanted, 0) else f"{done} of {wanted} steps, {failed} failed"


def serve_http(wire, scratch):
    """Returns the server of the steps, over TLS with new certificates if the protocol needs it."""
    words = [bench.plimsoll(), "serve", "http", "--listen", "127.0.0.1:0"]
    if wire.is_secured:
        certs = bench.make_certificates(scratch / "certs")
        words += ["--tls-cert", certs / "server.crt", "--tls-key", certs / "server.key"]
    return bench.Server(words)


def compare_steps(args, names):
    """Prints steps per CPU-second of each client; returns the number of missed goals."""
    wire = WIRES[args.protocol]
    reps, fraction = (2, 4) if args.quick else (args.reps, 1)
    rates, wrong = {}, {}
    with bench.Scratch() as scratch, serve_http(wire, scratch) as server:
        for rep in range(reps):
            # The order rotates with each repetition.
            turn = rep % len(names)
            for name in names[turn:] + names[:turn]:
                journeys = wire.journeys[name] // fraction
                command = steps_command(name, wire, server.address, journeys, scratch, scratch / f"run-{rep}")
                measured = bench.measure(command, timeout=300)
                problem = problem_of(name, wire, measured, journeys, scratch)
                if problem:
                    wrong.setdefault(name, []).append(problem)
                    continue
                rates.setdefault(name, []).append(journeys * wire.rounds * STEPS / measured.cpu)
            print(f"repetition {rep + 1} of {reps} done", file=sys.stderr)
    print(f"\njourneys of {wire.rounds * STEPS} steps over {wire.title}, {USERS} users at a time, medians of {reps} "
          f"interleaved repetitions; {bench.machine()}\n")
    rows, missed = [], 0
    ours = rates.get("plimsoll")
    for name in names:
        theirs = rates.get(name)
        if not theirs:
            rows.append([name, "invalid", wrong[name][-1]])
            missed += 1
            continue
        ratio = ""
        if ours and name != "plimsoll":
            times = bench.median(ours) / bench.median(theirs)
            each = [a / b for a, b in zip(ours, theirs)]
            ratio = f"1/{times:.0f} ({min(each):.0f}–{max(each):.0f})"
            if name in RATIO_GOALS and not wire.is_secured:
                is_met = times >= RATIO_GOALS[name]
                missed += not is_met
                ratio += f"; ≥ {RATIO_GOALS[name]} {'met' if is_met else 'MISSED'}"
        rows.append([name, f"{bench.median(theirs):,.0f}", ratio])
    bench.print_table(["client", "steps per CPU-second", "of Plimsoll's (lowest–highest repetition; goal)"], rows)
    return missed


STEP_PLAN = """
name   = "steps"
target = "http://ADDRESS"
[call.http]
version = "2"
method  = "POST"
[[steps]]
name = "first"
path = "/echo"
body = '{"n": "123456"}'
take = { n = "/n" }
[[steps]]
name   = "next"
path   = "/echo?n={{n}}"
body   = '{"n": "123456"}'
take   = { n = "/n" }
repeat = REPEAT
[load]
clients = USERS
calls   = JOURNEYS
"""
STEPS_PER_USER = 100
PLAIN_CALLS = 200_000


def compare_cost(args):
    """Prints the CPU of a step with a value beside a plain call's; returns the number of missed goals."""
    reps, fraction = (2, 4) if args.quick else (args.reps, 1)
    calls = PLAIN_CALLS // fraction
    cost = {"step": [], "call": []}
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "http", "--listen", "127.0.0.1:0"]
    ) as server:
        plan = fill(STEP_PLAN, ADDRESS=server.address, REPEAT=STEPS_PER_USER - 1, JOURNEYS=calls // STEPS_PER_USER)
        plain = [
            bench.plimsoll(), "http", f"http://{server.address}/echo?n=123456", "--http-version", "2",
            "-d", '{"n": "123456"}', "--clients", USERS, "-c", USERS, "--calls", calls, "--json", "-q",
        ]
        for rep in range(reps):
            kinds = ["step", "call"][:: 1 if rep % 2 == 0 else -1]
            for kind in kinds:
                folder = scratch / f"{kind}-{rep}"
                words = run_plan(plan, scratch, folder) if kind == "step" else [*plain, "--out", folder]
                measured = bench.measure(words)
                ok = json.loads(measured.out)["runs"][0]["total"]["ok"] if measured.exit == 0 else 0
                if ok != calls:
                    sys.exit(f"{kind}: {ok} of {calls} ok, exit {measured.exit}: {measured.errors.strip()[-300:]}")
                cost[kind].append(measured.cpu / calls * 1e6)
    ratio = bench.median(cost["step"]) / bench.median(cost["call"])
    each = [step / call for step, call in zip(cost["step"], cost["call"])]
    is_met = ratio <= COST_GOAL
    print(f"\nCPU over HTTP/2 with {USERS} users on {USERS} connections, medians of {reps} interleaved repetitions\n")
    bench.print_table(["", "µs of client CPU"], [
        ["a call of `plimsoll http`", f"{bench.median(cost['call']):.2f}"],
        ["a step with a value taken and sent", f"{bench.median(cost['step']):.2f}"],
        ["ratio (lowest–highest; goal)",
         f"{ratio:.2f} ({min(each):.2f}–{max(each):.2f}; ≤ {COST_GOAL} {'met' if is_met else 'MISSED'})"],
    ])
    return 0 if is_met else 1


MEMORY_PLAN = """
name   = "waiting"
target = "http://ADDRESS"
[[steps]]
path = "/echo"
body = 'LOGIN'
take = { token = "/token" }
[[steps]]
path    = "/bytes/100"
headers = { authorization = "Bearer {{token}}" }
[load]
rate         = "RATE/s"
duration     = "2s"
connect_rate = "1/s"
drain        = "1s"
"""


def measure_memory(args):
    """Prints the memory of each user who waits for a connection; returns the number of missed goals."""
    users = WAITING_USERS // (10 if args.quick else 1)
    rss, waiting = {}, 0
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "http", "--listen", "127.0.0.1:0"]
    ) as server:
        for name, count in (("few", 20), ("many", users)):
            plan = fill(MEMORY_PLAN, ADDRESS=server.address, RATE=count // 2)
            measured = bench.measure(run_plan(plan, scratch, scratch / name))
            run = bench.run_record(scratch / name)
            rss[name] = measured.rss
            waiting = run["total"]["measures"]["users"]["waiting_max"]
    if waiting < users * 0.95:
        sys.exit(f"only {waiting} of {users} users waited at one time")
    each = (rss["many"] - rss["few"]) / waiting
    is_met = each <= MEMORY_GOAL
    print(f"\n{waiting:,} users in flight who wait for a connection: {rss['many'] / 1e6:.0f} MB of resident memory, "
          f"{rss['few'] / 1e6:.0f} MB with twenty: {each:,.0f} bytes a user (≤ {MEMORY_GOAL:,} "
          f"{'met' if is_met else 'MISSED'})")
    return 0 if is_met else 1


# The freeze begins in the middle between two users, so that it is certain whom it meets.
STALL_MS, STALL_AFTER_MS = 500, 4_005
STALL_RATE, STALL_S = 100, 10
STALL_PAUSE_MS = 20

STALL_PLAN = """
name   = "stall"
target = "http://ADDRESS"
[[steps]]
name = "one"
path = "/bytes/100?step=1"
[[steps]]
name = "two"
path = "/bytes/100?step=2"
[[steps]]
name   = "three"
target = "http://FROZEN"
path   = "/bytes/100?step=3"
pause  = "PAUSEms"
[load]
rate     = "RATE/s"
duration = "SECONDSs"
"""

K6_STALL = """
import http from 'k6/http';
import { sleep } from 'k6';
import { Trend } from 'k6/metrics';
const third = new Trend('third', true);
const journey = new Trend('journey', true);
export const options = { scenarios: { users: SCENARIO } };
export default () => {
  const began = Date.now();
  http.get('http://ADDRESS/bytes/100?step=1');
  http.get('http://ADDRESS/bytes/100?step=2');
  sleep(PAUSE / 1000);
  third.add(http.get('http://FROZEN/bytes/100?step=3').timings.duration);
  journey.add(Date.now() - began);
  SLEEP
};
"""


def expected_p99_ms(offset_ms):
    """Returns the p99 of the third step's time in the schedule. Users reach it every 1/rate seconds, the first one
    when the clock of the freeze begins."""
    times = []
    for n in range(STALL_RATE * STALL_S):
        at = n * 1e3 / STALL_RATE
        frozen = STALL_AFTER_MS <= at < STALL_AFTER_MS + STALL_MS
        times.append((STALL_AFTER_MS + STALL_MS - at if frozen else 0) + offset_ms)
    times.sort()
    return times[-(-len(times) * 99 // 100) - 1]


def compare_stall():
    """Prints the p99 of a step whose server froze, by Plimsoll and k6, beside the schedule's."""
    freeze = f"{STALL_MS}ms@{STALL_AFTER_MS}ms"
    # As many users as make the rate while nothing stalls: each iteration takes 100 ms.
    closed = f"{{ executor: 'constant-vus', vus: {STALL_RATE // 10}, duration: '{STALL_S}s' }}"
    arrivals = ("{{ executor: 'constant-arrival-rate', rate: {rate}, timeUnit: '1s', duration: '{time}s', "
                "preAllocatedVUs: {vus}, maxVUs: {vus} }}")
    rest = f"sleep(Math.max(0, {1000 // 10} - (Date.now() - began)) / 1000);"
    kinds = [
        ("plimsoll, a user arrives every 10 ms", None, ""),
        ("k6, constant-vus: 10 users, a journey each 100 ms", closed, rest),
        ("k6, constant-arrival-rate: 100/s, 10 VUs", arrivals.format(rate=STALL_RATE, time=STALL_S, vus=10), ""),
        ("k6, constant-arrival-rate: 100/s, 100 VUs", arrivals.format(rate=STALL_RATE, time=STALL_S, vus=100), ""),
    ]
    rows, missed = [], 0
    with bench.Scratch() as scratch:
        for at, (what, scenario, sleep) in enumerate(kinds):
            with bench.Server([bench.plimsoll(), "serve", "http", "--listen", "127.0.0.1:0"]) as server, bench.Server(
                [bench.plimsoll(), "serve", "http", "--listen", "127.0.0.1:0", "--stall", freeze]
            ) as frozen:
                values = {"ADDRESS": server.address, "FROZEN": frozen.address, "PAUSE": STALL_PAUSE_MS,
                          "RATE": STALL_RATE, "SECONDS": STALL_S}
                folder = scratch / f"stall-{at}"
                if scenario is None:
                    words = run_plan(fill(STALL_PLAN, **values), scratch, folder)
                else:
                    script = fill(K6_STALL.replace("SCENARIO", scenario).replace("SLEEP", sleep), **values)
                    words = k6_command(script, scratch)
                measured = bench.measure(words)
                if measured.exit != 0:
                    sys.exit(f"{what}: exit {measured.exit}: {(measured.errors or measured.out).strip()[-300:]}")
                if scenario is None:
                    total = bench.run_record(folder)["total"]
                    third = next(step for step in total["steps"] if step["name"] == "three")["response"]
                    journey = total["measures"]["times"]["journey"]
                    p99, whole = third["p99_us"] / 1e3, journey["p99_us"] / 1e3
                    expected = expected_p99_ms(third["p50_us"] / 1e3)
                    off = abs(p99 / expected - 1)
                    missed += off > 0.01
                    made = total["measures"]["counts"]["users_ok"]
                else:
                    with open(scratch / "k6.json", encoding="utf-8") as file:
                        metrics = json.load(file)["metrics"]
                    p99, whole = metrics["third"]["p(99)"], metrics["journey"]["p(99)"]
                    made = metrics["iterations"]["count"]
            rows.append([what, f"{made:,}", f"{p99:.1f} ms", f"{whole:.1f} ms"])
    rows.append(["the schedule", f"{STALL_RATE * STALL_S:,}", f"{expected:.1f} ms", ""])
    print(f"\nthe server of the third step freezes for {STALL_MS} ms once in {STALL_S} s; {bench.machine()}\n")
    bench.print_table(["", "journeys", "p99 of step three", "p99 of the journey"], rows)
    print(f"\nPlimsoll is within 1 % of the schedule: {'met' if not missed else 'MISSED'}")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--clients", help="comma-separated (plimsoll,k6,locust; over h2 plimsoll,k6)")
    parser.add_argument("--protocol", choices=list(WIRES), default="h1",
                        help="what steps are made over; h2, over TLS, compares steps only (h1)")
    parser.add_argument("--only", choices=["steps", "cost", "memory"], help="only this part")
    parser.add_argument("--stall", action="store_true", help="only the freeze of a server, by Plimsoll and k6")
    parser.add_argument("--quick", action="store_true", help="two repetitions with a quarter of the calls")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed or a row is invalid")
    args = parser.parse_args()
    known = WIRES[args.protocol].journeys
    names = args.clients.split(",") if args.clients else list(known)
    for name in names:
        if name not in known:
            parser.error(f"unknown '{name}': expected one of {', '.join(known)}")
    if args.protocol == "h2":
        if args.stall or args.only not in (None, "steps"):
            parser.error("--protocol h2 compares steps only: leave out --stall and --only")
        args.only = "steps"
    bench.warn_if_busy()
    if args.stall:
        missed = compare_stall()
    else:
        missed = 0
        if args.only in (None, "steps"):
            missed += compare_steps(args, names)
        if args.only in (None, "cost"):
            missed += compare_cost(args)
        if args.only in (None, "memory"):
            missed += measure_memory(args)
    return 1 if args.gate and missed else 0


if __name__ == "__main__":
    sys.exit(main())
