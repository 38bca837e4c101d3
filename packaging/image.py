#!/usr/bin/env python3
"""Makes two container images, each as a tar file: `plimsoll` with every command, and `plimsoll-server`, which runs
`plimsoll serve` with a health check. Both contain one static binary, the certificate authorities that browsers
trust, and no other program.

A file is an OCI image layout with a `manifest.json` in addition, which any version of `docker load` reads.
The layer is compressed; all times are SOURCE_DATE_EPOCH, so the same binary gives the same image.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import tarfile
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import certifi

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
USER = 10001
PASSWD = f"root:x:0:0::/:/sbin/nologin\nplimsoll:x:{USER}:{USER}::/runs:/sbin/nologin\n"

# OCI's format has no health check; this is Docker's extension. Times are in nanoseconds.
HEALTH = {
    "Test": ["CMD", "/usr/bin/plimsoll", "check", "ready", "tcp://127.0.0.1:50051"],
    "Interval": 10_000_000_000,
    "Timeout": 5_000_000_000,
    "StartPeriod": 5_000_000_000,
    "Retries": 3,
}

IMAGES = {
    "plimsoll": {"Entrypoint": ["/usr/bin/plimsoll"], "Cmd": ["--help"]},
    "plimsoll-server": {
        "Entrypoint": ["/usr/bin/plimsoll", "serve"],
        "Cmd": ["score", "--listen", "0.0.0.0:50051"],
        "ExposedPorts": {"50051/tcp": {}},
        "StopSignal": "SIGTERM",
        "Healthcheck": HEALTH,
    },
}


def tar_entry(name: str, size: int = 0, mode: int = 0o644, owner: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid, info.gid, info.mtime = size, mode, owner, owner, EPOCH
    return info


def add_folder(archive: tarfile.TarFile, name: str, mode: int = 0o755, owner: int = 0) -> None:
    info = tar_entry(name, mode=mode, owner=owner)
    info.type = tarfile.DIRTYPE
    archive.addfile(info)


def add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    archive.addfile(tar_entry(name, len(content), mode), io.BytesIO(content))


def layer(binary: Path, licences: Path) -> bytes:
    """Returns the layer with the files of both images."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in ("etc", "etc/ssl", "etc/ssl/certs", "usr", "usr/bin", "usr/share", "usr/share/doc", "usr/share/doc/plimsoll"):
            add_folder(archive, folder)
        add_folder(archive, "tmp", mode=0o1777)
        # New volumes get the owner of these folders; only this user may read keys.
        for folder in ("certs", "runs"):
            add_folder(archive, folder, owner=USER)
        add_file(archive, "etc/passwd", PASSWD.encode())
        # Certificates of object stores and of targets are verified against these.
        add_file(archive, "etc/ssl/certs/ca-certificates.crt", Path(certifi.where()).read_bytes())
        add_file(archive, "usr/bin/plimsoll", binary.read_bytes(), mode=0o755)
        for file in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"):
            add_file(archive, f"usr/share/doc/plimsoll/{file}", (licences / file).read_bytes())
        add_file(archive, "usr/share/doc/plimsoll/CERTIFI-LICENSE", licence_of("certifi"))
    return out.getvalue()


def licence_of(package: str) -> bytes:
    """Returns the licence text of an installed Python package."""
    return next(file for file in metadata.files(package) or [] if file.name == "LICENSE").read_binary()


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def descriptor(kind: str, content: bytes) -> dict:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(content), "size": len(content)}


def encode_json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def image(name: str, version: str, files: bytes, packed: bytes) -> dict[str, bytes]:
    """Returns the files of an image by name."""
    created = datetime.fromtimestamp(EPOCH, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
    }
    settings = {"User": f"{USER}:{USER}", "WorkingDir": "/", "Labels": labels, **IMAGES[name]}
    config = encode_json({
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [digest(files)]},
        "history": [{"created": created, "created_by": "packaging/image.py"}],
    })
    manifest = encode_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", config),
        "layers": [descriptor("layer.v1.tar+gzip", packed)],
    })
    tag = f"{name}:{version}"
    listed = descriptor("manifest.v1+json", manifest)
    listed["annotations"] = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"localhost/{tag}"}
    listed["platform"] = {"architecture": "amd64", "os": "linux"}

    def blob(content: bytes) -> str:
        return "blobs/sha256/" + digest(content).removeprefix("sha256:")

    return {
        "oci-layout": encode_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": encode_json({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [listed],
        }),
        "manifest.json": encode_json([{
            "Config": blob(config),
            "RepoTags": [f"localhost/{tag}"],
            "Layers": [blob(packed)],
        }]),
        blob(config): config,
        blob(manifest): manifest,
        blob(packed): packed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--binary", "--licences", "--out"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--version", required=True)
    given = parser.parse_args()
    files = layer(given.binary, given.licences)
    packed = gzip.compress(files, compresslevel=9, mtime=0)
    for name in IMAGES:
        path = given.out / f"{name}-{given.version}-x86_64-oci.tar"
        with tarfile.open(path, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for folder in ("blobs", "blobs/sha256"):
                add_folder(archive, folder)
            for file, content in sorted(image(name, given.version, files, packed).items()):
                add_file(archive, file, content)


if __name__ == "__main__":
    main()
