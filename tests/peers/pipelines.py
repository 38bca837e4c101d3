#!/usr/bin/env python3
"""Reads a pipeline as its CI server does, checks it against the server's schema, and prints it as JSON.

    pipelines.py SCHEMA FILE [INPUT=VALUE]…

SCHEMA is a name of check-jsonschema's, such as `gitlab-ci`, `buildkite`, `github-workflows` or `github-actions`. Of a
GitLab template, the inputs of its `spec` are inserted first, as GitLab does; those that are not given have their
defaults.
"""

import json
import re
import subprocess
import sys
import tempfile

try:
    import check_jsonschema  # noqa: F401
    import yaml
except ImportError as missing:
    sys.exit(f"pipelines: {missing}: run `make setup`, and start this with .peers/venv/bin/python")


class Loader(yaml.SafeLoader):
    """Reads YAML 1.2, in which `on` is a text: the key of a workflow."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def insert_inputs(header: dict, body: str, given: dict[str, str]) -> str:
    """Inserts inputs where the template names them (docs.gitlab.com/ci/inputs)."""
    inputs = header["spec"]["inputs"]
    if unknown := set(given) - set(inputs):
        sys.exit(f"unknown inputs: {', '.join(sorted(unknown))}")

    def value(found: re.Match) -> str:
        name = found[1]
        if name not in inputs:
            sys.exit(f"the template uses an input that its spec lacks: {name}")
        if name in given:
            return given[name]
        if inputs[name] is None or "default" not in inputs[name]:
            sys.exit(f"the input {name} is required")
        return str(inputs[name]["default"])

    unused = [name for name in inputs if f"inputs.{name} " not in body]
    if unused:
        sys.exit(f"inputs that the template never uses: {', '.join(unused)}")
    return re.sub(r"\$\[\[ inputs\.([\w-]+) ]]", value, body)


def main() -> None:
    schema, file, *inputs = sys.argv[1:]
    with open(file, encoding="utf-8") as pipeline:
        text = pipeline.read()
    header, divider, body = text.partition("\n---\n")
    if divider:
        given = dict(one.split("=", 1) for one in inputs)
        text = insert_inputs(yaml.load(header, Loader), body, given)
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as whole:
        whole.write(text)
        whole.flush()
        check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", whole.name]
        checked = subprocess.run(check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if checked.returncode != 0:
        sys.exit(f"{file}: {checked.stdout}")
    print(json.dumps(yaml.load(text, Loader)))


if __name__ == "__main__":
    main()
