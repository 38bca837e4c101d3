"""A fake kubectl with the commands that `plimsoll kubernetes --apply` uses; its pods are processes of this machine.

    kubectl.py PROGRAM FOLDER WORDS...

FOLDER keeps the state between calls: the objects, and the pods' output and exit codes. PROGRAM is the image's
entrypoint.
"""

import json
import pathlib
import subprocess
import sys


def apply(program, folder):
    folder.mkdir()
    objects = folder / "objects.yaml"
    objects.write_text(sys.stdin.read(), encoding="utf-8")
    pods = pathlib.Path(__file__).with_name("kubernetes_pods.py")
    with (folder / "pods.log").open("w", encoding="utf-8") as log:
        # The process outlives this call, like a cluster.
        subprocess.Popen([sys.executable, pods, objects, program, folder / "nodes"], stdin=subprocess.DEVNULL,
                         stdout=log, stderr=log, start_new_session=True)
    print("job.batch/stand-in created")


def codes(folder):
    """Returns the pods' exit codes once all have ended."""
    ended = folder / "nodes" / "codes"
    return json.loads(ended.read_text(encoding="utf-8")) if ended.exists() else None


def get(folder):
    found = codes(folder)
    states = [{"running": {}}] if found is None else [{"terminated": {"exitCode": code}} for code in found]
    kind = "Complete" if found is not None and not any(found) else "Failed"
    conditions = [] if found is None else [{"type": kind, "status": "True"}]
    index = "batch.kubernetes.io/job-completion-index"
    pods = [{"kind": "Pod",
             "metadata": {"name": f"pod-{k}", "annotations": {index: str(k)}},
             "status": {"containerStatuses": [{"state": state}]}} for k, state in enumerate(states)]
    print(json.dumps({"kind": "List", "items": [{"kind": "Job", "status": {"conditions": conditions}}, *pods]}))


def main():
    program, folder, *words = sys.argv[1:]
    folder = pathlib.Path(folder)
    if words[0] == "--namespace":
        assert words[1] == "load", words
        words = words[2:]
    match words:
        case ["apply", "-f", "-"]:
            apply(program, folder)
        case ["get", "job,pod", "-l", label, "-o", "json"]:
            assert label.startswith("plimsoll/run=plimsoll-"), label
            get(folder)
        case ["logs", "pod-0", *_]:
            print((folder / "pods.log").read_text(encoding="utf-8"))
        case _:
            sys.exit(f"kubectl.py: unexpected: {words}")


if __name__ == "__main__":
    main()
