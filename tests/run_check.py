#!/usr/bin/env python3
"""Tests the test runner, tests/run.py, with programs that print what libtest prints."""

import contextlib
import importlib.util
import io
import os
import pathlib
import tempfile
import unittest
import unittest.mock

PATH = pathlib.Path(__file__).resolve().parent / "run.py"
spec = importlib.util.spec_from_file_location("run", PATH)
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)

# Fails the tests named in `fails`, each as often as its file in the folder says, and passes the others.
LIBTEST = r"""#!/bin/bash
cd "$(dirname "$0")"
failed=()
passed=0
for file in *.left; do
    name=${file%.left}
    [[ $# == 0 || $1 == "$name" ]] || continue
    left=$(<"$file")
    if ((left > 0)); then echo $((left - 1)) >"$file"; failed+=("$name"); echo "test $name ... FAILED"
    else passed=$((passed + 1)); echo "test $name ... ok"; fi
done
for name in "${failed[@]}"; do printf -- '---- %s stdout ----\nfirst output of %s\n\n' "$name" "$name"; done
[[ -e killed ]] && { rm killed; exit 134; }
echo "test result: $passed passed; ${#failed[@]} failed; 0 ignored"
((${#failed[@]} == 0))
"""


# Lists the tests in `names`, or prints its arguments.
LISTED = r"""#!/bin/bash
if [[ $1 == --list ]]; then sed 's/$/: test/' "$(dirname "$0")/names"; else echo "$*"; fi
"""


class Runner(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        os.environ["XDG_STATE_HOME"] = str(self.folder / "state")
        self.program = self.folder / "program"
        self.program.write_text(LIBTEST, encoding="utf-8")
        self.program.chmod(0o755)

    def run_set(self, **failures):
        """Runs a set whose tests fail as often as `failures` says; returns (exit code, output)."""
        for name, times in failures.items():
            (self.folder / f"{name}.left").write_text(f"{times}\n", encoding="utf-8")
        tests = runner.Tests()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            tests.run([runner.Binary("program", str(self.folder), str(self.program))])
            code = tests.finish("set")
        return code, printed.getvalue()

    def last_line(self, output):
        return output.strip().splitlines()[-1]

    def test_all_pass(self):
        code, output = self.run_set(one=0, two=0)
        self.assertEqual((code, self.last_line(output)), (0, "2 passed, 0 failed"))

    def test_fails_twice(self):
        code, output = self.run_set(one=0, two=2)
        self.assertEqual((code, self.last_line(output)), (1, "1 passed, 1 failed"))
        self.assertIn("failed: program: two", output)

    def test_fails_once_is_flaky(self):
        code, output = self.run_set(one=0, two=1)
        self.assertEqual((code, self.last_line(output)), (0, "2 passed, 0 failed, 1 flaky"))
        self.assertIn("flaky: program: two", output)
        self.assertIn("first output of two", output.split("once more, alone")[1])

    def test_flaky_again_within_five_runs_is_refused(self):
        self.assertEqual(self.run_set(one=1)[0], 0)
        for _ in range(3):
            self.assertEqual(self.run_set(one=0)[0], 0)
        code, output = self.run_set(one=1)
        self.assertEqual(code, 1)
        self.assertIn("refused: program: one: flaky in two of the last 5 runs", output)

    def test_flaky_again_after_five_runs_is_not_refused(self):
        self.assertEqual(self.run_set(one=1)[0], 0)
        for _ in range(4):
            self.assertEqual(self.run_set(one=0)[0], 0)
        self.assertEqual(self.run_set(one=1)[0], 0)

    def test_more_than_five_flaky_are_refused(self):
        self.assertEqual(self.run_set(a=1, b=1, c=1, d=1, e=1)[0], 0)
        code, output = self.run_set(f=1, g=1, h=1, i=1, j=1, k=1)
        self.assertEqual(code, 1)
        self.assertIn("refused: 6 tests were flaky, and at most 5 may be", output)

    def test_many_failures_do_not_run_again(self):
        code, output = self.run_set(**{f"t{number}": 1 for number in range(runner.MAX_RERUNS + 1)})
        self.assertEqual(code, 1)
        self.assertNotIn("once more, alone", output)

    def test_killed_binary_runs_again_whole(self):
        (self.folder / "killed").touch()
        code, output = self.run_set(one=0)
        self.assertEqual(code, 0)
        self.assertIn("flaky: program ended with status 134", output)

    def test_hanging_binary_is_killed_with_its_children(self):
        child = self.folder / "child"
        self.program.write_text(f"#!/bin/bash\nsleep 600 &\necho $! >{child}\nwait\n", encoding="utf-8")
        with unittest.mock.patch.object(runner, "MAX_RUN_S", 1):
            code, output = self.run_set()
        self.assertEqual(code, 1)
        self.assertIn("killed, since it had not ended after 1 s", output)
        stat = pathlib.Path(f"/proc/{child.read_text().strip()}/stat")
        # Killed processes without a parent stay until init has waited for them.
        self.assertTrue(not stat.exists() or stat.read_text(encoding="utf-8").split()[2] == "Z")

    def parts_of(self, *names):
        self.program.write_text(LISTED, encoding="utf-8")
        (self.folder / "names").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        return runner.Binary("program", str(self.folder), str(self.program)).parts()

    def test_binary_of_modules_runs_in_parts(self):
        parts = self.parts_of("a::one", "b::a::two", "b::three", "ba::four")
        self.assertEqual([part.name for part in parts], ["program::a", "program::b", "program::ba"])
        ran = [part.run_tests("--ignored")[1].strip() for part in parts]
        self.assertEqual(
            ran, ["--ignored --exact a::one", "--ignored --exact b::a::two b::three", "--ignored --exact ba::four"]
        )

    def test_binary_with_tests_outside_of_modules_stays_whole(self):
        (whole,) = self.parts_of("one", "b::two")
        self.assertEqual((whole.name, whole.run_tests()[1].strip()), ("program", ""))

    def test_steps_run_beside_each_other(self):
        there = self.folder / "there"
        tests = runner.Tests()
        with contextlib.redirect_stdout(io.StringIO()):
            # The first step ends only once the second one has run.
            with tests.beside(tests.step, "sh", "-c", f"until test -e {there}; do sleep 0.05; done"):
                tests.step("touch", str(there))
        self.assertEqual((tests.passed, tests.failures), (2, []))

    def test_script_runs_again(self):
        marker = self.folder / "marker"
        tests = runner.Tests()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            tests.step("bash", "-c", f"test -e {marker} || {{ touch {marker}; exit 1; }}")
            code = tests.finish("set")
        self.assertEqual((code, self.last_line(printed.getvalue())), (0, "1 passed, 0 failed, 1 flaky"))


if __name__ == "__main__":
    unittest.main()
