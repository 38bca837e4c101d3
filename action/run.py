#!/usr/bin/env python3
"""The one step of the action: runs a plan, and says on GitHub's pages what came of it.

It reads the inputs of action.yml from the variables LOAD_…, and ends with the code of the load. Plimsoll itself
appends the run to the job's summary; this adds annotations for what failed, and the comparison with a base run.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as xml
from pathlib import Path

RESULTS = {0: "pass", 90: "invalid", 99: "fail"}


def given(name: str) -> str:
    return os.environ.get(f"LOAD_{name}", "").strip()


def escaped(text: str, more: str = "") -> str:
    """As GitHub's commands want values; `more` are the characters that end a property."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def annotate(kind: str, title: str, text: str) -> None:
    print(f"::{kind} title={escaped(title, ':,')}::{escaped(text)}", flush=True)


def append(variable: str, text: str) -> None:
    """To one of the files that GitHub names in the environment; elsewhere there is none."""
    if file := os.environ.get(variable):
        with open(file, "a", encoding="utf-8") as out:
            out.write(text)


def installed() -> str:
    """The program to run."""
    if binary := given("BINARY"):
        return binary
    folder = Path(os.environ.get("RUNNER_TEMP") or tempfile.mkdtemp()) / "plimsoll"
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, given("PACKAGE") or "plimsoll-load"], check=True)
    return str(folder / "bin/plimsoll")


def annotate_failures(junit: Path) -> None:
    """A test case that failed is an error of the job; one that can't be judged is reported as that."""
    for suite in xml.parse(junit).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            for verdict in case:
                if verdict.tag in ("failure", "error"):
                    title = f"{suite.get('name')}: {case.get('name')}"
                    annotate("error", title, verdict.get("message") or (verdict.text or "").strip() or verdict.tag)


def compare(plimsoll: str, base: str, run: Path, folder: Path) -> None:
    """Appends the comparison to the summary. A difference of two runs is shown, and decides nothing."""
    table = folder / "compare.md"
    command = [plimsoll, "compare", base, str(run), "--markdown", str(table), "--html", str(folder / "compare.html")]
    if subprocess.run(command).returncode != 0:
        annotate("warning", "No comparison", f"{base} and {run} can't be compared; the log says why")
        return
    text = table.read_text(encoding="utf-8")
    append("GITHUB_STEP_SUMMARY", f"\n{text}\n")
    annotate("notice", "Compared with a base run", f"{folder / 'compare.html'} and the job's summary have the difference")


def main() -> int:
    plans = given("PLAN").splitlines()
    words = shlex.split(given("COMMAND") or "run")
    if not plans and len(words) == 1:
        annotate("error", "No plan", "give `plan`: the plan file to run; or a whole line as `command`")
        return 2
    plimsoll = installed()
    folder = Path(given("FOLDER") or "load-test")
    folder.mkdir(parents=True, exist_ok=True)
    junit, run = folder / "junit.xml", folder / "run"
    # An earlier step's.
    junit.unlink(missing_ok=True)
    documents = ["--junit", str(junit), "--html", str(folder / "report.html")]
    documents += ["--comment", str(folder / "comment.md")]
    # Several plans have a directory each, in runs/.
    out = ["--out", str(run)] if len(plans) < 2 else []
    command = [plimsoll, *words, *plans, *documents, *out, *shlex.split(given("FLAGS"))]
    print(shlex.join(command), flush=True)
    code = subprocess.run(command).returncode
    if junit.exists():
        annotate_failures(junit)
    elif code != 0:
        annotate("error", "Nothing was measured", f"plimsoll ended with {code}; the log says why")
    if base := given("BASE"):
        if out:
            compare(plimsoll, base, run, folder)
        else:
            annotate("warning", "No comparison", "`base` is for a single plan")
    result = RESULTS.get(code, "error")
    append("GITHUB_OUTPUT", f"exit-code={code}\nresult={result}\nrun={run if out else 'runs'}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
