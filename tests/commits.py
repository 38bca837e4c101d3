#!/usr/bin/env python3
"""Checks subjects of commits: a lower-case area, a colon, an imperative; at most 72 characters.

    tests/commits.py                   every commit since this file was added
    tests/commits.py --message FILE    the message in FILE, as git gives it to a commit-msg hook

The exit code is 0 if all subjects are valid, and 1 otherwise.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_SUBJECT_CHARS = 72
# Beginnings of subjects that git and forges generate.
GENERATED = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SUBJECT = re.compile(r"(?P<area>[a-z0-9][a-z0-9 ,./_-]*): (?P<rest>\S.*)")
# Verbs whose imperative ends like a participle.
IMPERATIVES = {"bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed", "spring", "string"}
EXAMPLE = "for example `flags: reject non-UTF-8 values`"


def find_fault(subject):
    """Returns what is wrong with a subject, or None."""
    if subject.startswith(GENERATED):
        return None
    if len(subject) > MAX_SUBJECT_CHARS:
        return f"has {len(subject)} characters, and at most {MAX_SUBJECT_CHARS} are allowed"
    match = SUBJECT.fullmatch(subject)
    if not match:
        return f"does not begin with a lower-case area, a colon and a blank: {EXAMPLE}"
    verb = match["rest"].split()[0]
    if verb[0].isupper() and verb[1:].islower():
        return f"begins `{verb}` with a capital letter after the area: {EXAMPLE}"
    if re.fullmatch(r"[a-z]+(ed|ing)", verb) and verb not in IMPERATIVES:
        return f"says `{verb}` where an imperative belongs: {EXAMPLE}"
    if subject.endswith("."):
        return "ends with a full stop"
    return None


def commits_since_this_file():
    """Returns (commit, subject) of each commit after the one that added this file, newest first."""

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    added = git("log", "--diff-filter=A", "--format=%H", "--", "tests/commits.py").split()
    if not added:
        return []
    lines = git("log", "--format=%h %s", f"{added[-1]}..HEAD").splitlines()
    return [tuple(line.split(" ", 1)) for line in lines]


def main(arguments):
    match arguments:
        case []:
            commits = commits_since_this_file()
        case ["--message", path]:
            text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            commits = [("this commit", lines[0] if lines else "")]
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    faults = [(commit, subject, find_fault(subject)) for commit, subject in commits]
    faults = [entry for entry in faults if entry[2]]
    for commit, subject, why in faults:
        print(f"{commit}: the subject `{subject}` {why}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
