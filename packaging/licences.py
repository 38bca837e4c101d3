#!/usr/bin/env python3
"""Prints the licences of all libraries in the binary, which many require to accompany every copy.

Each text is printed once, with the packages that it applies to. A package without a licence file is
listed with the licences that its manifest names; their texts are those of other packages.
"""

import json
import subprocess
import sys
from pathlib import Path

NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def linked_packages(metadata: dict) -> set[str]:
    """Returns the ids of the packages that are linked into the binary."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    own = {package["id"] for package in metadata["packages"] if package["source"] is None}
    start = next(p["id"] for p in metadata["packages"] if p["id"] in own and p["name"] == "plimsoll")
    seen, left = {start}, [start]
    while left:
        for dependency in nodes[left.pop()]["deps"]:
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if normal and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                left.append(dependency["pkg"])
    return seen - own


def main() -> None:
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    chosen = linked_packages(metadata)
    texts: dict[str, list[str]] = {}
    without = []
    for package in sorted(metadata["packages"], key=lambda package: (package["name"], package["version"])):
        if package["id"] not in chosen:
            continue
        name = f"{package['name']} {package['version']}"
        folder = Path(package["manifest_path"]).parent
        files = [f for f in sorted(folder.iterdir()) if f.is_file() and f.name.upper().startswith(NAMES)]
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip()
            texts.setdefault(text, []).append(name)
        if not files:
            without.append(f"{name}: {package['license'] or 'see its sources'}")
    if len(texts) < 10:
        sys.exit(f"packaging/licences.py: only {len(texts)} licence texts were found: are the sources present?")
    print("Plimsoll's binary contains these libraries, under these licences.\n")
    for text, names in texts.items():
        print("=" * 100, "\n".join(dict.fromkeys(names)), "-" * 100, text, "", sep="\n")
    print("=" * 100, "Without a licence file of their own:", *without, sep="\n")


if __name__ == "__main__":
    main()
