#!/usr/bin/env python3
"""Mutation testing: finds small changes of the code that no test notices.

cargo-mutants lists the possible changes (mutants). It would build each separately, which takes half
a minute per mutant; here all are compiled into one copy of the tree, in target/mutants, and the
variable PLIMSOLL_MUTANT selects the one that is active in a process. A first run of the tests without
mutants records which tests reach which function, and each mutant runs only with the tests that reach
its function. The few that cannot be selected at run time (constants, `const fn`, `-> impl Trait`) are
built separately.

A mutant is caught if a test fails, its process dies, or the tests use many times the CPU that they
need without it (CPU rather than time, because a busy machine slows the tests down).
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import resource
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / ".peers" / "bin" / "cargo-mutants"
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
# The tree's dependencies are already compiled there.
TARGET = ROOT / "target"

# The crates whose tests cover a crate: unit tests, and those in the crate's folder tests.
TESTS = {
    "plimsoll-model": ["plimsoll-model unit", "plimsoll-model integration"],
    "plimsoll-engine": ["plimsoll-engine unit", "plimsoll-engine simulation", "plimsoll-protocols simulation"],
    "plimsoll-wire": ["plimsoll-wire unit", "plimsoll-protocols unit", "plimsoll-protocols grpc_driver",
                      "plimsoll-protocols simulation"],
    "plimsoll-protocols": ["plimsoll-protocols unit", "plimsoll-protocols simulation",
                           "plimsoll-protocols grpc_driver", "plimsoll-protocols integration"],
}

# The files on which every measurement relies: schedule, recorder, statistics, search; issuing; TLS; decoders.
CORE_FILES = [
    "crates/plimsoll-model/src/{schedule,records/recorder,search}.rs",
    "crates/plimsoll-model/src/search/{bounds,estimate,growth,result}.rs",
    "crates/plimsoll-model/src/statistics/*.rs",
    "crates/plimsoll-engine/src/event_loop/{connecting,due_calls}.rs",
    "crates/plimsoll-engine/src/worker/{call_starts,lifecycle}.rs",
    "crates/plimsoll-engine/src/script/worker.rs",
    "crates/plimsoll-engine/src/tls/{buffered_session,crypto_speed,handshake,own_session,record,traffic_secrets,trust}.rs",
    "crates/plimsoll-engine/src/tls/record/resting_records.rs",
    "crates/plimsoll-wire/src/http2/{deframe,frame}.rs",
    "crates/plimsoll-wire/src/hpack/{decoder,huffman,integer,table}.rs",
    "crates/plimsoll-protocols/src/bolt/{frame,header,sofa}.rs",
    "crates/plimsoll-protocols/src/bolt/hessian/decode.rs",
    "crates/plimsoll-wire/src/websocket/{frame,reader}.rs",
]

CPU_LIMIT_S, CPU_FACTOR = 40, 5
# Time limit in seconds, which only tests that wait forever exceed.
WALL_LIMIT_S = 900
MEMORY_LIMIT_BYTES = 8 << 30

SWITCH_SOURCE = """
/// Inserted by tests/mutants.py: selects the change of a function's body that is active in a process.
#[allow(warnings, clippy::all)]
pub(crate) mod mutant_switch {
    use std::collections::HashSet;
    use std::io::Write;
    use std::sync::{Mutex, OnceLock};

    static CHOSEN: OnceLock<u32> = OnceLock::new();
    static REACHED: Mutex<Option<HashSet<(String, u32)>>> = Mutex::new(None);

    #[inline(never)]
    pub(crate) fn chosen(function: u32) -> u32 {
        let chosen = *CHOSEN.get_or_init(|| match std::env::var("PLIMSOLL_MUTANT") {
            Ok(number) => number.parse().unwrap(),
            Err(_) => 0,
        });
        if chosen == u32::MAX {
            reached(function);
        }
        chosen
    }

    fn reached(function: u32) {
        let test = std::thread::current().name().unwrap_or("").to_owned();
        let mut all = REACHED.lock().unwrap_or_else(|e| e.into_inner());
        if all.get_or_insert_with(HashSet::new).insert((test.clone(), function)) {
            let path = std::env::var("PLIMSOLL_MUTANTS_REACHED").unwrap();
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            file.write_all(format!("{function} {test}\\n").as_bytes()).unwrap();
        }
    }
}
"""


def fail(message):
    sys.exit(f"tests/mutants.py: {message}")


def log(message):
    print(message, flush=True)


# --- The changes ---------------------------------------------------------------------


class Source:
    """A file's text with the offsets of its lines."""

    def __init__(self, path):
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self.starts = [0]
        for line in self.text.split("\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)

    def span(self, span):
        start, end = span["start"], span["end"]
        return (self.starts[start["line"] - 1] + start["column"] - 1,
                self.starts[end["line"] - 1] + end["column"] - 1)


TOKEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(\#*)".*?"\1 | b?"(?:\\.|[^"\\])*" | b?'(?:\\.[^']*|[^'\\])' | [()\[\]{}]""",
    re.S | re.X)


def body_of(text, start, end):
    """Returns the offset of the opening brace of the function at `start`, or None."""
    depth = 0
    for token in TOKEN.finditer(text, start, end):
        word = token.group()
        if word == "{" and depth == 0:
            return token.start()
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
    return None


def list_mutants(files, pattern):
    if not TOOL.exists():
        fail(f"{TOOL} is missing: `make mutants` installs it")
    command = [TOOL, "mutants", "--list", "--json", "--no-config"]
    for file in files:
        command += ["--file", file]
    if pattern:
        command += ["--re", pattern]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return [dict(mutant, outcome="not run", why=None) for mutant in json.loads(found.stdout)]


def sample_mutants(mutants, number, least, seed):
    """Draws `number` mutants, from each file in proportion (at least `least`, if it has as many)."""
    by_file = collections.defaultdict(list)
    for mutant in mutants:
        by_file[mutant["file"]].append(mutant)
    chosen = []
    for file in sorted(by_file):
        of_file = by_file[file]
        share = round(number * len(of_file) / len(mutants))
        draw = random.Random(f"{seed} {file}")
        chosen += draw.sample(of_file, min(len(of_file), max(share, least)))
    return chosen


# --- The copy ------------------------------------------------------------------------


class TreeCopy:
    """A copy of the tree that contains the mutants, numbered from 1; 0 stands for none."""

    def __init__(self, mutants):
        self.sources = {}
        self.mutants = mutants
        self.functions = {}
        self.alone = set()
        self.unviable = set()
        self.regions = {}
        for number, mutant in enumerate(mutants, 1):
            mutant["number"] = number
            source = self.sources.setdefault(mutant["file"], Source(mutant["file"]))
            mutant["at"] = source.span(mutant["span"])
            function = mutant["function"]
            if function is None:
                self.alone.add(number)
                continue
            start, end = source.span(function["span"])
            brace = body_of(source.text, start, end)
            signature = source.text[start:brace] if brace else ""
            inside = brace is not None and brace < mutant["at"][0] and source.text[end - 1] == "}"
            if not inside or re.search(r"\bconst\s+(unsafe\s+)?fn\b", signature) or "impl " in function["return_type"]:
                self.alone.add(number)
                continue
            key = (mutant["file"], brace, end)
            mutant["body"] = key
            self.functions.setdefault(key, len(self.functions) + 1)

    def sync(self, tests):
        """Copies the files that git tracks; unchanged ones are not touched, so that cargo does not rebuild them."""
        names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                               cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
        wanted = {name for name in names if name and (ROOT / name).exists()}
        for folder, _, files in os.walk(TREE):
            for file in files:
                path = pathlib.Path(folder, file)
                if str(path.relative_to(TREE)) not in wanted:
                    path.unlink()
        for name in sorted(wanted):
            if name in self.sources or name == "Cargo.toml" or (ROOT / name).is_dir():
                continue
            data = (ROOT / name).read_bytes()
            if re.fullmatch("crates/[^/]+/Cargo.toml", name):
                data = with_tests(pathlib.Path(name).parent, data.decode(), tests).encode()
            write_if_changed(TREE / name, data, ROOT / name)
        # A separate profile keeps the two builds from overwriting each other's files, while dependencies are shared.
        # Lints only warn, because a change may leave a value unused.
        manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
        manifest = re.sub(r'(?m)^debug = "line-tables-only"', "debug = false", manifest)
        manifest = manifest.replace('= "deny"', '= "warn"')
        write_if_changed(TREE / "Cargo.toml", manifest.encode())
        if (ROOT / ".peers").exists() and not (TREE / ".peers").exists():
            (TREE / ".peers").symlink_to(ROOT / ".peers")

    def write(self, forced=None):
        """Writes the files with switches for all mutants, or with only the mutant `forced` applied."""
        switched = {file.split("/src/")[0] for file in self.sources}
        for file, source in self.sources.items():
            text = self.rendered(file, source, forced)
            write_if_changed(TREE / file, text.encode())
        for crate in switched:
            root = f"{crate}/src/lib.rs"
            text = (TREE / root).read_text(encoding="utf-8") if root in self.sources else Source(root).text
            write_if_changed(TREE / root, (text + SWITCH_SOURCE).encode())

    def rendered(self, file, source, forced):
        everywhere = [forced] if forced and forced["file"] == file else []
        left_out = self.alone | self.unviable
        by_body = collections.defaultdict(list)
        for mutant in self.mutants:
            chosen = not everywhere and "body" in mutant and mutant["number"] not in left_out
            if mutant["file"] == file and chosen:
                by_body[mutant["body"]].append(mutant)
        bodies = sorted(by_body, key=lambda body: (body[1], -body[2]))
        self.regions[file] = regions = []
        pieces = []
        line = 1

        def put_text(text, number=None):
            nonlocal line
            last = line + text.count("\n")
            if number is not None:
                regions.append((line, last, number))
            pieces.append(text)
            line = last

        def changed(start, end, mutants):
            text = source.text[start:end]
            for mutant in mutants:
                at, to = mutant["at"]
                if start <= at and to <= end:
                    text = text[:at - start] + " " + mutant["replacement"] + " " + text[to - start:]
            return text

        def plain(start, end, within):
            """Returns the text from `start` to `end`, with a switch in each function that has mutants."""
            inner = [body for body in within if start <= body[1] and body[2] <= end]
            at = start
            while inner:
                body = inner.pop(0)
                _, brace, close = body
                nested = [other for other in inner if other[2] <= close]
                inner = [other for other in inner if other[2] > close]
                put_text(changed(at, brace, everywhere))
                put_text(f"{{ match crate::mutant_switch::chosen({self.functions[body]}) {{\n")
                for mutant in by_body[body]:
                    put_text(f"{mutant['number']} => ")
                    put_text(changed(brace, close, [mutant]), mutant["number"])
                    put_text("\n")
                put_text("_ => ")
                first = line
                plain(brace, close, nested)
                regions.append((first, line, -self.functions[body]))
                put_text("\n} }")
                at = close
            put_text(changed(at, end, everywhere))

        plain(0, len(source.text), bodies)
        return "".join(pieces)

    def drop_failing(self, errors):
        """Drops the mutants that do not compile; returns False if no mutant caused the errors."""
        found = set()
        for file, line in errors:
            inside = [(last - first, number) for first, last, number in self.regions.get(file, [])
                      if first <= line <= last]
            # The innermost function, because functions may be nested.
            if inside:
                found.add(min(inside)[1])
        for number in found:
            if number > 0:
                self.unviable.add(number)
            else:
                body = next(body for body, function in self.functions.items() if function == -number)
                self.alone |= {m["number"] for m in self.mutants if m.get("body") == body} - self.unviable
        return bool(found)


def with_tests(folder, manifest, tests):
    """Returns the manifest with only these tests enabled. The build still covers the whole workspace:
    building fewer packages would select other features of dependencies, which cargo would compile
    again."""
    crate = folder.name
    unit = str(f"{crate} unit" in tests).lower()
    manifest = manifest.replace("[package]\n", "[package]\nautotests = false\nautobenches = false\nautoexamples = false\n", 1)
    manifest = re.sub(r"(?ms)^\[\[(bench|test|example)\]\]$.*?(?=^\[|\Z)", "", manifest)
    for kind, root in (("[lib]", "src/lib.rs"), ("[[bin]]", "src/main.rs")):
        if not (ROOT / folder / root).exists():
            continue
        if kind in manifest:
            manifest = manifest.replace(kind, f"{kind}\ntest = {unit}\ndoctest = false", 1)
        elif kind == "[lib]":
            manifest += f"\n[lib]\ntest = {unit}\ndoctest = false\n"
        else:
            manifest += f'\n[[bin]]\nname = "{crate}"\npath = "{root}"\ntest = {unit}\n'
    for test in tests:
        package, name = test.split(" ")
        if package == crate and name != "unit":
            single = f"tests/{name}.rs"
            path = single if (ROOT / folder / single).exists() else f"tests/{name}/main.rs"
            manifest += f'\n[[test]]\nname = "{name}"\npath = "{path}"\n'
    return manifest


def write_if_changed(path, data, like=None):
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if like:
        shutil.copymode(like, path)


# --- Building ------------------------------------------------------------------------


def build():
    """Returns the test binaries as (name, folder, path), or None and the locations of compile errors."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(TARGET), CARGO_INCREMENTAL="1")
    command = [os.environ.get("CARGO", "cargo"), "test", "--no-run", "--workspace", "--message-format=json"]
    found = subprocess.Popen(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True)
    binaries, errors, rendered = [], [], []
    for line in found.stdout:
        message = json.loads(line)
        if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            rendered.append(message["message"]["rendered"])
            for span in message["message"]["spans"]:
                while span["expansion"] and not span["file_name"].startswith("crates/"):
                    span = span["expansion"]["span"]
                if span["is_primary"] or not errors:
                    errors.append((span["file_name"], span["line_start"]))
        elif message["reason"] == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            folder = pathlib.Path(message["manifest_path"]).parent
            whole = "test" in message["target"]["kind"]
            name = f"{folder.name} {message['target']['name'] if whole else 'unit'}"
            binaries.append((name, folder, message["executable"]))
    if found.wait() != 0:
        return None, errors, rendered
    return binaries, [], []


def build_all(copy):
    while True:
        copy.write()
        binaries, errors, rendered = build()
        if binaries is not None:
            return binaries
        before = len(copy.unviable) + len(copy.alone)
        if not copy.drop_failing(errors) or before == len(copy.unviable) + len(copy.alone):
            fail("the compile errors are outside of the mutants:\n" + "".join(rendered))
        log(f"{len(copy.unviable)} do not compile, {len(copy.alone)} are built by themselves; again")


# --- Running -------------------------------------------------------------------------


class TestRun:
    def __init__(self, outcome, why, cpu, failures):
        self.outcome, self.why, self.cpu, self.failures = outcome, why, cpu, failures


def run(binary, mutant, arguments, cpu_limit, to_the_end=False, reached=None):
    """Runs a test binary within limits until a test fails, or to the end."""
    name, folder, path = binary
    environment = dict(os.environ, PLIMSOLL_MUTANT=str(mutant), CARGO_MANIFEST_DIR=str(folder),
                       PROPTEST_FAILURE_PERSISTENCE="off", RUST_BACKTRACE="0")
    if reached:
        environment["PLIMSOLL_MUTANTS_REACHED"] = str(reached)

    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if cpu_limit:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_limit), int(cpu_limit) + 2))

    process = subprocess.Popen([path, "--test-threads", "2", *arguments], cwd=folder, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, preexec_fn=limits)
    failures, end, text = [], time.monotonic() + WALL_LIMIT_S, b""
    outcome = why = None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while outcome is None:
            left = end - time.monotonic()
            if left <= 0:
                outcome, why = "hung", f"no end within {WALL_LIMIT_S} s"
                break
            if not selector.select(left):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            text += data
            *lines, text = text.split(b"\n")
            for line in lines:
                found = re.search(rb"^test (\S+)(?: - should panic)? \.\.\. .*FAILED$", line)
                if found:
                    failures.append(found.group(1).decode())
                    if not to_the_end:
                        outcome, why = "caught", f"{name}: {failures[-1]}"
    if outcome:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    cpu = usage.ru_utime + usage.ru_stime
    if outcome is None:
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            outcome, why = "looped", f"{name}: {cpu:.0f} s of CPU"
        elif process.returncode != 0:
            outcome, why = "caught", f"{name}: ended with {process.returncode}"
        else:
            outcome, why = "missed", None
    return TestRun(outcome, why, cpu, failures)


def map_reached_tests(binary):
    """Returns the tests of a binary that reach each function; the test None stands for all."""
    place = WORK / "reached"
    place.unlink(missing_ok=True)
    ran = run(binary, (1 << 32) - 1, [], None, to_the_end=True, reached=place)
    reached = collections.defaultdict(set)
    names = subprocess.run([binary[2], "--list"], cwd=binary[1], stdout=subprocess.PIPE, text=True, check=True)
    tests = set(re.findall(r"(?m)^(.*): test$", names.stdout))
    if place.exists():
        for line in place.read_text().splitlines():
            function, _, test = line.partition(" ")
            reached[int(function)].add(test if test in tests else None)
    if ran.outcome == "hung":
        fail(f"{binary[0]}: {ran.why}, without any change")
    return reached, ran


def test_mutant(mutant, binaries, surveys, function):
    """Returns the outcome and its reason. `function`: its number, or None for all tests of a binary."""
    asked = 0
    for binary in binaries:
        reached, before = surveys[binary[0]]
        tests = {None} if function is None else reached.get(function, set())
        if not tests:
            continue
        asked += 1
        arguments = ["--exact"]
        for failure in before.failures:
            arguments += ["--skip", failure]
        if None not in tests:
            arguments += sorted(tests)
        ran = run(binary, mutant["number"], arguments, CPU_LIMIT_S + CPU_FACTOR * before.cpu)
        if ran.outcome != "missed":
            return ran.outcome, ran.why
    return "missed", None if asked else "no test reaches it"


# --- The whole run -------------------------------------------------------------------


def wilson_interval(good, all_):
    """Returns Wilson's 95 % confidence interval of a proportion."""
    z = 1.96
    share = good / all_
    middle = (share + z * z / (2 * all_)) / (1 + z * z / all_)
    half = z * ((share * (1 - share) / all_ + z * z / (4 * all_ * all_)) ** 0.5) / (1 + z * z / all_)
    return middle - half, middle + half


def report(mutants, out):
    rows = collections.defaultdict(collections.Counter)
    for mutant in mutants:
        for file in (mutant["file"], "all"):
            rows[file][mutant["outcome"]] += 1
    names = ["caught", "looped", "missed", "hung", "unviable", "not run"]
    log("\n" + " ".join(f"{name:>9}" for name in names))
    for file in sorted(rows, key=lambda file: (file == "all", file)):
        log(" ".join(f"{rows[file][name]:>9}" for name in names) + f"  {file}")
    for mutant in mutants:
        if mutant["outcome"] in ("missed", "hung"):
            log(f"{mutant['outcome']}: {mutant['name']}" + (f" ({mutant['why']})" if mutant["why"] else ""))
    count = rows["all"]
    good, judged = count["caught"] + count["looped"], sum(count[n] for n in names[:4])
    if judged:
        low, high = wilson_interval(good, judged)
        log(f"{good} of {judged} caught: {good / judged:.1%} (95 %: {low:.1%} to {high:.1%})")
    log(f"all of it is in {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=CORE_FILES,
                        help="files or patterns of them, as crates/…/x.rs (what measurements rest on)")
    parser.add_argument("--re", help="only the changes whose names match")
    parser.add_argument("--sample", type=int, help="draw so many of them, from each file its share")
    parser.add_argument("--least", type=int, default=5, help="of a sample: how many a file at least (5)")
    parser.add_argument("--seed", help="of the sample (fresh)")
    parser.add_argument("--tests", help="which tests, as 'plimsoll-model unit,plimsoll-engine simulation'")
    parser.add_argument("--survivors", type=pathlib.Path, help="only those that an earlier outcome file has as missed")
    parser.add_argument("--out", type=pathlib.Path, default=WORK / "outcomes.json")
    args = parser.parse_args()

    mutants = list_mutants(args.files, args.re)
    if args.survivors:
        names = {m["name"] for m in json.loads(args.survivors.read_text()) if m["outcome"] in ("missed", "hung")}
        mutants = [m for m in mutants if m["name"] in names]
    if args.sample:
        seed = args.seed or secrets.token_hex(4)
        log(f"seed {seed}")
        mutants = sample_mutants(mutants, args.sample, args.least, seed)
    if not mutants:
        fail("no mutants in: " + " ".join(args.files))
    log(f"{len(mutants)} changes")

    began = time.monotonic()

    def judged(mutant, outcome, why=None):
        mutant["outcome"], mutant["why"] = outcome, why
        open_ = sum(m["outcome"] == "not run" for m in mutants)
        log(f"[{time.monotonic() - began:.0f} s, {open_} to go] {outcome}: {mutant['name']}" + (f" ({why})" if why else ""))
        args.out.write_text(json.dumps(mutants))

    for package in sorted({mutant["package"] for mutant in mutants}):
        of_package = [mutant for mutant in mutants if mutant["package"] == package]
        tests = args.tests.split(",") if args.tests else TESTS.get(package, [f"{package} unit"])
        copy = TreeCopy(of_package)
        copy.sync(tests)
        binaries = build_all(copy)
        binaries.sort(key=lambda binary: tests.index(binary[0]))
        log(f"[{time.monotonic() - began:.0f} s] {package} is built")
        surveys = {}
        for binary in binaries:
            surveys[binary[0]] = map_reached_tests(binary)
            before = surveys[binary[0]][1]
            log(f"[{time.monotonic() - began:.0f} s] {binary[0]}: {before.cpu:.0f} s of CPU"
                + (f"; fail without any change and are left out: {before.failures}" if before.failures else ""))
        for mutant in of_package:
            if mutant["number"] in copy.unviable:
                judged(mutant, "unviable")
            elif mutant["number"] not in copy.alone:
                judged(mutant, *test_mutant(mutant, binaries, surveys, copy.functions[mutant["body"]]))
        for mutant in of_package:
            if mutant["number"] in copy.alone:
                copy.write(forced=mutant)
                own, _, _ = build()
                judged(mutant, *(test_mutant(mutant, own, surveys, None) if own else ("unviable",)))
    report(mutants, args.out)


if __name__ == "__main__":
    main()
