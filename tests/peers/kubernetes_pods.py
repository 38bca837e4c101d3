"""A fake cluster: checks objects against Kubernetes' own schema, and runs a Job's pods as processes.

    kubernetes_pods.py OBJECTS PROGRAM FOLDER

Pod K has its volumes and its working directory below FOLDER/K, and gets its number as in a cluster. PROGRAM is
the image's entrypoint; a volume claim is FOLDER/claim. Prints the pods' exit codes on one line, and writes them to
FOLDER/codes.
"""

import base64
import json
import os
import pathlib
import subprocess
import sys

import kubernetes_validate
import yaml


def content(object_):
    """Returns the content of a ConfigMap or Secret by key."""
    texts = {key: text.encode() for key, text in (object_.get("data") or {}).items()}
    if object_["kind"] == "Secret":
        return {key: base64.b64decode(text) for key, text in texts.items()}
    others = object_.get("binaryData") or {}
    return texts | {key: base64.b64decode(text) for key, text in others.items()}


def main():
    objects, program, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    documents = list(yaml.safe_load_all(objects.read_text(encoding="utf-8")))
    for document in documents:
        kubernetes_validate.validate(document, "1.33", strict=True)
    held = {(d["kind"], d["metadata"]["name"]): content(d) for d in documents if d["kind"] in ("ConfigMap", "Secret")}
    job = next(d for d in documents if d["kind"] == "Job")["spec"]
    assert job["completionMode"] == "Indexed" and job["parallelism"] == job["completions"] and job["backoffLimit"] == 0
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    pods = []
    for number in range(job["completions"]):
        root = folder / str(number)
        places = {}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            place = folder / "claim" if "persistentVolumeClaim" in volume else root / mount["mountPath"].lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            places[mount["mountPath"]] = place
            for source in volume.get("projected", {}).get("sources", []):
                kind, of = ("ConfigMap", source["configMap"]) if "configMap" in source else ("Secret", source["secret"])
                for item in of["items"]:
                    file = place / item["path"]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(held[kind, of["name"]][item["key"]])

        def here(word):
            for path, place in places.items():
                for start in (path, "file://" + path):
                    if word == start or word.startswith(start + "/"):
                        return start.removesuffix(path) + str(place) + word.removeprefix(start)
            return word

        pods.append(subprocess.Popen(
            [program, *map(here, container["args"])],
            cwd=places[container["workingDir"]],
            env={"JOB_COMPLETION_INDEX": str(number), "TMPDIR": str(places["/tmp"]), **dict(os.environ)},
        ))
    codes = [pod.wait() for pod in pods]
    print(*codes)
    # Renamed when complete, so that no reader sees a part of it.
    written = folder / "codes.part"
    written.write_text(json.dumps(codes), encoding="utf-8")
    written.rename(folder / "codes")


if __name__ == "__main__":
    main()
