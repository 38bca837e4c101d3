#!/usr/bin/env bash
# Checks the files in deploy/: Docker Compose's library must load the compose files, Kustomize must build the
# Kubernetes folders, and every object must match Kubernetes' schema. Nothing is started.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers=$PWD/.peers
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

JWT_SECRET=$(openssl rand -hex 32)
export JWT_SECRET
for file in deploy/compose.yaml deploy/sessions.yaml; do
    "$peers/bin/go-compose" -profile load "$file" >/dev/null
    # The library rejects unknown keys, but accepts a service without the keys that are required here.
    "$peers/bin/go-compose" "$file" >"$scratch/compose.json"
    python3 - "$file" "$scratch/compose.json" <<'PYTHON'
import json, sys
name, path = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    services = json.load(file)["services"]
# The service that makes certificates exits by itself.
running = {service: keys for service, keys in services.items() if service != "certs"}
missing = [f"{service}: {key}" for service, keys in running.items()
           for key in ("healthcheck", "restart", "stop_grace_period") if key not in keys]
if missing or not running:
    sys.exit(f"tests/deploy.sh: {name}: no {', '.join(missing)}")
PYTHON
done

cp -R deploy/kubernetes "$scratch/kubernetes"
echo "JWT_SECRET=$JWT_SECRET" >"$scratch/kubernetes/secret.env"
for folder in kubernetes kubernetes/load; do
    "$peers/bin/kustomize" build "$scratch/$folder" >"$scratch/objects.yaml"
    "$peers/venv/bin/kubernetes-validate" --strict --quiet -k 1.33 "$scratch/objects.yaml"
    echo "deploy/$folder: $(grep -c '^kind: ' "$scratch/objects.yaml") objects"
done
