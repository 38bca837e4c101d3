#!/usr/bin/env python3
"""Runs a set of tests, and prints how many passed, failed and were flaky.

    tests/run.py tests                what `make test` runs
    tests/run.py peers FUZZ_SECONDS   what `make test-peers` runs
    tests/run.py release              what `make test-release` runs
    tests/run.py soak NAME [TIMES]    the tests whose names contain NAME, TIMES (50) times, beside busy loops

Every step runs, whatever the result of the one before. A test that fails runs once more at the end, alone. If it
passes then, it is flaky: its first output is printed, and it does not fail the set by itself. A set fails if a test
failed twice, if more than MAX_FLAKY tests were flaky, or if a test was flaky in another of the last RUNS_REMEMBERED
runs of the set, which are kept in ~/.local/state/plimsoll/flaky-tests.json ($XDG_STATE_HOME, if set).

A binary whose tests are all in modules runs in parts, one for each of its outermost modules, as if each were a binary
of its own: `plimsoll load::http` is a part of `plimsoll load`.

Compiling and installing overlap, and so do PARALLEL binaries or parts: most of their time is waiting. The fuzz targets
compile beside the other tests of `peers`, at a low priority. CARGO and CARGO_FLAGS are those of the Makefile. The exit
code is 0 if the set passed, 1 if it failed, 2 for a usage error.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = shlex.split(os.environ.get("CARGO") or "cargo")
CARGO_FLAGS = shlex.split(os.environ.get("CARGO_FLAGS") or "")
# All tests come from one build, because for another choice of packages, targets or features cargo compiles nearly every
# dependency once more.
ALL_PACKAGES = ["--workspace", "--features", os.environ.get("TEST_FEATURES") or "plimsoll/parquet,plimsoll/tokenizers"]
# Number of test binaries, or parts of them, that run concurrently.
PARALLEL = 3
# Maximum number of flaky tests in a set; more indicate a broken machine or change.
MAX_FLAKY = 5
# The longest binaries and parts start first, which shortens the whole set.
LONGEST_BINARIES = ("plimsoll distributed::shards", "plimsoll-engine simulation", "plimsoll cli::docs")
# Failed tests that run once more. A change that breaks more than this many is not flaky.
MAX_RERUNS = 25
# Number of runs, including the present one, in which no test may be flaky twice.
RUNS_REMEMBERED = 5
# A script, or a part of a binary, that takes longer than this hangs. The longest part takes 6 minutes on a busy machine,
# and fuzz targets 17 with their compilation.
MAX_RUN_S = 1800
# Default number of runs of `soak`.
SOAK_TIMES = 50
# Busy loops per processor during `soak`.
BUSY_LOOPS_PER_CPU = 2


@dataclasses.dataclass(frozen=True)
class Binary:
    """A compiled test binary, or the part of one that consists of `tests`."""

    name: str
    folder: str
    path: str
    env: tuple = ()
    # Full names of the part's tests; empty for the whole binary.
    tests: tuple = ()

    def run(self, *arguments):
        """Runs the binary as cargo does, in its package's folder; returns (exit status, output)."""
        env = {**os.environ, **dict(self.env), "CARGO_MANIFEST_DIR": self.folder, "LD_LIBRARY_PATH": library_path()}
        return capture([self.path, *arguments], cwd=self.folder, env=env)

    def run_tests(self, *arguments):
        """Runs the part's tests; `arguments` may choose among them, as `--ignored` does."""
        return self.run(*arguments, *(["--exact", *self.tests] if self.tests else []))

    def list_tests(self):
        """Returns the full names of the tests, including ignored ones."""
        if self.tests:
            return self.tests
        _, output = self.run("--list", "--format", "terse")
        return tuple(re.findall(r"^(.*): test$", output, re.MULTILINE))

    def parts(self):
        """Splits the binary by its outermost modules; one with tests outside of modules stays whole."""
        tests = self.list_tests()
        modules = sorted({test.split("::")[0] for test in tests})
        if len(modules) < 2 or not all("::" in test for test in tests):
            return [self]
        parts = []
        for module in modules:
            of_module = tuple(test for test in tests if test.startswith(f"{module}::"))
            parts.append(dataclasses.replace(self, name=f"{self.name}::{module}", tests=of_module))
        return parts


@dataclasses.dataclass(frozen=True)
class Failure:
    """A test that failed once: its name, its output, and how to run it again."""

    name: str
    output: str
    # A function that returns (exit status, output); None if there is nothing to run again, as after a failed build.
    again: object = None


@functools.cache
def library_path():
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{ROOT}/target/debug/deps:{sysroot}/lib"


# Processes that end with the runner.
CHILDREN = set()


def start(command, **options):
    """Starts a command in its own process group, so that the processes that it starts end with it."""
    child = subprocess.Popen(command, process_group=0, **options)
    CHILDREN.add(child)
    return child


def end_group(child, sign):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, sign)


def wait(child):
    """Waits for a command; one that takes more than MAX_RUN_S is killed. Returns (exit status, output)."""
    late = ""
    try:
        output, _ = child.communicate(timeout=MAX_RUN_S)
    except subprocess.TimeoutExpired:
        end_group(child, signal.SIGKILL)
        output, _ = child.communicate()
        late = f"\ntests/run.py: killed, since it had not ended after {MAX_RUN_S} s\n"
    CHILDREN.discard(child)
    return child.returncode, (output or "") + late


def capture(command, **options):
    """Runs a command with its output in one text; returns (exit status, output)."""
    child = start(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **options,
    )
    return wait(child)


def end_at_once(*_):
    """Ends all children and the runner; handles signals."""
    for child in list(CHILDREN):
        end_group(child, signal.SIGTERM)
    os._exit(130)


def total(output, what):
    """Sums what the result lines of libtest in `output` count as `what` (passed, failed, ignored)."""
    return sum(int(count) for count in re.findall(rf"^test result: .*?(\d+) {what};", output, re.MULTILINE))


def failed_names(output):
    return re.findall(r"^test (.*?)(?: - should panic)? \.\.\. FAILED$", output, re.MULTILINE)


def output_of(name, output):
    """Returns the part of a binary's output that belongs to the test `name`."""
    part = re.search(rf"^---- {re.escape(name)} stdout ----$(.*?)(?=^---- |^failures:$|\Z)", output, re.M | re.S)
    return part.group(0) if part else output


class Tests:
    """Counts of a set of tests, and the failures that run again."""

    def __init__(self):
        self.passed = 0
        self.ignored = 0
        self.failures = []
        self.printing = threading.Lock()
        self.setup = None

    def fail(self, name, output="", again=None):
        self.failures.append(Failure(name, output, again))

    def say(self, text):
        with self.printing:
            print(text, flush=True)

    @contextlib.contextmanager
    def timed(self, what):
        """Prints how long the block took."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.say(f"{what}: {time.monotonic() - began:.0f} s")

    def step(self, *command):
        """Runs a script, which counts as one test."""
        with self.timed(shlex.join(command)):
            status, output = capture(command, cwd=ROOT)
        with self.printing:
            print(output, end="", flush=True)
            if status == 0:
                self.passed += 1
            else:
                self.fail(shlex.join(command), output, again=lambda: capture(command, cwd=ROOT))

    @contextlib.contextmanager
    def beside(self, function, *arguments):
        """Runs `function` beside the block, and waits for both."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(function, *arguments)
            yield
            running.result()

    def install(self, scope):
        """Begins to install what a set needs besides Rust; `wait_for_setup` waits for it."""
        self.setup = start(["tests/setup.sh", scope], cwd=ROOT)

    def wait_for_setup(self):
        if self.setup.wait() != 0:
            sys.exit("tests/run.py: requirements of the tests are missing (see above); no test was run")

    def build(self, *arguments):
        """Compiles the tests that `arguments` choose, as `cargo test` takes them; returns their binaries, in parts."""
        command = [*CARGO, "test", *CARGO_FLAGS, "--no-run", "--message-format=json-render-diagnostics", *arguments]
        with self.timed(f"compiling {shlex.join(arguments)}"):
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            self.fail(shlex.join(command))
        found = []
        for line in done.stdout.splitlines():
            message = json.loads(line)
            if message.get("executable") and message["profile"]["test"]:
                folder = os.path.dirname(message["manifest_path"])
                package = os.path.basename(folder)
                target = message["target"]
                is_integration = "test" in target["kind"]
                name = f"{package} {target['name'] if is_integration else 'unit tests'}"
                binary = Binary(name, folder, message["executable"])
                # The libraries' integration tests, which use much CPU, follow; unit tests are short and come last.
                for part in binary.parts() if is_integration else [binary]:
                    order = (part.name not in LONGEST_BINARIES, not is_integration, package == "plimsoll", part.name)
                    found.append((order, part))
        return [binary for _, binary in sorted(found, key=lambda entry: entry[0])]

    def pick(self, binaries, names):
        """Returns the binaries and parts of these names; one that is missing is a failure."""
        for name in set(names) - {binary.name for binary in binaries}:
            self.fail(f"no test binary or part of one is called `{name}`")
        return [binary for binary in binaries if binary.name in names]

    def run(self, binaries, chosen=(), doc=False):
        """Runs the binaries, PARALLEL at a time: of each, the tests that the arguments `chosen` choose, or all."""
        with concurrent.futures.ThreadPoolExecutor(PARALLEL + 1) as pool:
            examples = pool.submit(self.run_examples) if doc else None
            slots = threading.Semaphore(PARALLEL)
            running = [pool.submit(self.run_binary, binary, chosen, slots) for binary in binaries]
            ended = sum(binary.result() for binary in running)
            if examples:
                examples.result()
        if chosen and ended == 0:
            self.fail(f"no test matches {shlex.join(chosen)}")

    def run_binary(self, binary, chosen, slots):
        """Runs a binary's tests; returns how many ended."""
        with slots:
            status, output = binary.run_tests(*chosen)
        with self.printing:
            passed = total(output, "passed")
            self.passed += passed
            self.ignored += total(output, "ignored")
            names = failed_names(output) if total(output, "failed") else []
            for name in names:
                again = lambda name=name: binary.run(name, "--exact", "--include-ignored")
                self.fail(f"{binary.name}: {name}", output_of(name, output), again)
            if status != 0 and not names:
                # The binary was killed, or panicked outside of a test: no line counts it.
                self.fail(f"{binary.name} ended with status {status}", output, lambda: binary.run_tests(*chosen))
            if status != 0:
                print(f"==> {binary.name}\n{output}", flush=True)
            results = " ".join(re.findall(r"^test result: (.*)$", output, re.MULTILINE))
            print(f"{binary.name}: {results}", flush=True)
            return passed + total(output, "failed") + (status != 0 and not names)

    def run_examples(self):
        """Runs the examples in the documentation."""
        # All tests are chosen, and then those whose names contain a line's number, as only those of examples do: with
        # `--doc`, cargo compiles every dependency once more, since fewer of them are shared with build scripts.
        command = [*CARGO, "test", *CARGO_FLAGS, "--no-fail-fast", *ALL_PACKAGES, "--", "(line "]
        status, output = capture(command, cwd=ROOT)
        with self.printing:
            self.passed += total(output, "passed")
            self.ignored += total(output, "ignored")
            if status != 0:
                print(output, flush=True)
                # Examples cannot be chosen by their exact names: all of them run again.
                self.fail(shlex.join(command), output, lambda: capture(command, cwd=ROOT))

    def rerun(self):
        """Runs each failed test once more, alone; returns (failed, flaky)."""
        failed, flaky = [], []
        few = len(self.failures) <= MAX_RERUNS
        for failure in self.failures:
            if few and failure.again:
                print(f"==> once more, alone: {failure.name}", flush=True)
                status, output = failure.again()
                if status == 0:
                    flaky.append(failure)
                    continue
                print(output, flush=True)
            failed.append(failure)
        return failed, flaky

    def finish(self, name):
        """Judges the set called `name`, prints its last lines, and returns the exit code."""
        failed, flaky = self.rerun()
        refused = judge_flaky(flaky, History.of(name))
        for failure in flaky:
            print(f"==> flaky: {failure.name}: it failed, then passed alone. Its first output:\n{failure.output}")
        for failure in failed:
            print(f"failed: {failure.name}")
        for failure in flaky:
            print(f"flaky: {failure.name}")
        for reason in refused:
            print(f"refused: {reason}")
        counts = [f"{self.passed + len(flaky)} passed", f"{len(failed)} failed"]
        if flaky:
            counts.append(f"{len(flaky)} flaky")
        if self.ignored:
            counts.append(f"{self.ignored} ignored")
        print(", ".join(counts), flush=True)
        return 1 if failed or refused else 0


class History:
    """The names of flaky tests in the last runs of one set, kept between runs."""

    def __init__(self, path, name):
        self.path = path
        self.name = name
        self.sets = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.sets = json.loads(path.read_text(encoding="utf-8"))

    @classmethod
    def of(cls, name):
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return cls(pathlib.Path(state) / "plimsoll" / "flaky-tests.json", name)

    def earlier(self):
        """Returns the tests that were flaky in the remembered runs, except the present one."""
        return {name for run in self.sets.get(self.name, [])[-(RUNS_REMEMBERED - 1) :] for name in run}

    def add(self, flaky):
        self.sets[self.name] = [*self.sets.get(self.name, []), flaky][-RUNS_REMEMBERED:]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.sets, indent=1) + "\n", encoding="utf-8")


def judge_flaky(flaky, history):
    """Returns the reasons why a set with these flaky tests fails; stores them for later runs."""
    reasons = []
    if len(flaky) > MAX_FLAKY:
        reasons.append(f"{len(flaky)} tests were flaky, and at most {MAX_FLAKY} may be")
    earlier = history.earlier()
    for failure in flaky:
        if failure.name in earlier:
            reasons.append(f"{failure.name}: flaky in two of the last {RUNS_REMEMBERED} runs")
    history.add([failure.name for failure in flaky])
    return reasons


def run_tests():
    tests = Tests()
    tests.install("tests")
    binaries = tests.build(*ALL_PACKAGES)
    tests.wait_for_setup()
    tests.step("tests/scripts.sh")
    tests.step("tests/run_check.py")
    tests.run(binaries, doc=True)
    return tests.finish("tests")


def run_peers(fuzz_seconds):
    tests = Tests()
    tests.install("peers")
    # Reuses the binaries that `make test` built.
    binaries = tests.build(*ALL_PACKAGES)
    tests.wait_for_setup()
    # The newer OpenSSL takes the place of the system's.
    newer = (("PATH", f"{ROOT}/.peers/newer:{os.environ['PATH']}"),)
    with_tls = ("load::fetch", "load::hold", "load::peers", "tls::abroad", "tls::identity", "tls::measurements")
    with_openssl = [f"plimsoll {name}" for name in with_tls]
    autobahn = tests.pick(binaries, ["plimsoll-relays sessions::autobahn"])
    protocols = tests.pick(binaries, ["plimsoll-protocols unit tests"])
    # A fixed seed: the same inputs each time. `make fuzz` looks for new ones.
    fuzz = ("nice", "-n", "19", "env", "SEED=1", "fuzz/run.sh", fuzz_seconds)
    with tests.beside(tests.step, *fuzz), tests.beside(tests.run, autobahn, ["--ignored"]):
        tests.run(protocols, ["--ignored", "conformance_suite"])
        tests.run([dataclasses.replace(binary, env=newer) for binary in tests.pick(binaries, with_openssl)])
        tests.step("tests/deploy.sh")
        tests.step("tests/clusters.py", "target/debug/plimsoll")
        # A fixed seed, as for the fuzz targets; `make faults` draws others.
        tests.step("tests/faults.py", "target/debug/plimsoll", "--number", "200", "--seed", "1")
        tests.step("make", "--no-print-directory", "site")
    return tests.finish("peers")


def run_release():
    tests = Tests()
    binaries = tests.build(*ALL_PACKAGES)
    # The release build with a feature that injects panics. The optimizations that take minutes are left out, because
    # they do not affect panics.
    release = [*CARGO, "build", *CARGO_FLAGS, "--quiet", "--release", "-p", "plimsoll", "--features", "fault"]
    sooner = {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "1", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
    with tests.timed(shlex.join(release)):
        built = subprocess.run(
            [*release, "--target-dir", "target/faults"], cwd=ROOT, env={**os.environ, **sooner}, check=False
        )
    if built.returncode != 0:
        tests.fail(shlex.join(release))
    program = (("PROGRAM_UNDER_TEST", f"{ROOT}/target/faults/release/plimsoll"),)
    faults = tests.pick(binaries, ["plimsoll failures::faults"])
    tests.run([dataclasses.replace(binary, env=program) for binary in faults])
    return tests.finish("release")


@contextlib.contextmanager
def busy_loops():
    """Keeps every processor busy."""
    count = BUSY_LOOPS_PER_CPU * len(os.sched_getaffinity(0))
    loops = [start([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def soak(name, times):
    tests = Tests()
    binaries = tests.build(*ALL_PACKAGES)
    if tests.failures:
        sys.exit("tests/run.py: soak: the tests do not compile (above)")
    chosen = [(binary, test) for binary in binaries for test in binary.list_tests() if name in test]
    if not chosen:
        sys.exit(f"tests/run.py: soak: no test has a name that contains `{name}`")
    runs = failed = 0
    with busy_loops():
        for binary, test in chosen:
            for _ in range(times):
                status, output = binary.run(test, "--exact")
                runs += 1
                if status != 0:
                    failed += 1
                    print(f"==> {binary.name}: {test}\n{output_of(test, output)}")
                print(f"{binary.name}: {test}: run {runs} of {times * len(chosen)}, {failed} failed", flush=True)
    print(f"{runs - failed} passed, {failed} failed")
    return 1 if failed else 0


def main(arguments):
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, end_at_once)
    match arguments:
        case ["tests"]:
            return run_tests()
        case ["peers", seconds] if seconds.isdigit():
            return run_peers(seconds)
        case ["release"]:
            return run_release()
        case ["soak", name] if name:
            return soak(name, SOAK_TIMES)
        case ["soak", name, times] if name and times.isdigit():
            return soak(name, int(times))
    print(__doc__.split("\n\n")[1], file=sys.stderr)
    print(f"tests/run.py: unknown arguments {arguments}: expected one of the lines above", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
