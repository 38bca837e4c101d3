#!/usr/bin/env python3
"""Makes the Python wheel: the binary as a script of the package `plimsoll-load`, without Python code."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

METADATA = """\
Metadata-Version: 2.4
Name: plimsoll-load
Version: {version}
Summary: Load testing for secure links: gRPC, HTTP, SOFARPC and token streaming over TLS
License-Expression: Apache-2.0 OR MIT
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
License-File: THIRD-PARTY.txt
Keywords: load-testing,benchmark,grpc,tls,latency
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Rust
Classifier: Topic :: Software Development :: Testing :: Traffic Generation
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""

WHEEL = """\
Wheel-Version: 1.0
Generator: plimsoll
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--binary", "--licences", "--out"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--glibc", required=True, help="the oldest one that the binary runs on, such as 2.28")
    given = parser.parse_args()
    name = f"plimsoll_load-{given.version}"
    # PEP 600: installers on systems with an older C library reject the wheel.
    platform = f"manylinux_{given.glibc.replace('.', '_')}_x86_64"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        scripts, info = folder / f"{name}.data/scripts", folder / f"{name}.dist-info"
        scripts.mkdir(parents=True)
        (info / "licenses").mkdir(parents=True)
        shutil.copy(given.binary, scripts / "plimsoll")
        (scripts / "plimsoll").chmod(0o755)
        for file in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"):
            shutil.copy(given.licences / file, info / "licenses" / file)
        readme = (ROOT / "packaging/pypi.md").read_text(encoding="utf-8")
        metadata = METADATA.format(version=given.version) + readme
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        (info / "WHEEL").write_text(WHEEL.format(platform=platform), encoding="utf-8")
        # `wheel pack` writes the RECORD, and takes times from SOURCE_DATE_EPOCH.
        pack = [sys.executable, "-m", "wheel", "pack", str(folder), "--dest-dir", str(given.out)]
        subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
