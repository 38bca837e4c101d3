#!/usr/bin/env bash
# Checks what no compiler checks: the shell and Python scripts, the Go peers' formatting, and that the container
# files copy only files of the tree or of a release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failures=0
complain() {
    echo "tests/scripts.sh: $*" >&2
    failures=$((failures + 1))
}

mapfile -t shell < <(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
shellcheck "${shell[@]}" || complain "shellcheck reports problems (above)"
for script in "${shell[@]}"; do
    grep -q '^set -euo pipefail$' "$script" || complain "$script: expected the line 'set -euo pipefail'"
    [[ -x $script ]] || complain "$script: not executable: run chmod +x $script"
done

mapfile -t python < <(git ls-files --cached --others --exclude-standard -- '*.py')
python3 - "${python[@]}" <<'PYTHON' || complain "a Python script does not parse (above)"
import ast, sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        ast.parse(file.read(), path)
PYTHON

if command -v gofmt >/dev/null; then
    unformatted=$(gofmt -l bench/peers)
    [[ -z $unformatted ]] || complain "run gofmt -w on: $unformatted"
fi

# Succeeds if a source of COPY is a path in the tree, or the release binary, which is built before.
exists() { [[ $1 == target/release/plimsoll || -e $1 ]]; }
for file in deploy/Containerfile*; do
    while read -r _ arguments; do
        [[ $arguments == *--from=* ]] && continue
        read -ra words <<<"$arguments"
        unset 'words[-1]'
        for path in "${words[@]}"; do
            [[ $path == --* ]] && continue
            exists "$path" || complain "$file: COPY $path: no such file in the tree"
        done
    done < <(grep -E '^COPY ' "$file")
done
# `dockerfile` is a path in the build context, which is the tree's root or the folder itself.
for compose in deploy/compose.yaml deploy/sessions.yaml; do
    while read -r path; do
        [[ -e $path || -e deploy/$path ]] || complain "$compose: dockerfile: $path: no such file in the tree"
    done < <(sed -nE 's/^ *dockerfile: *//p' "$compose")
    while read -r target; do
        grep -qE "^FROM .* AS $target\$" deploy/Containerfile* || complain "$compose: target: $target: no such stage in deploy/Containerfile*"
    done < <(sed -nE 's/^ *target: *//p' "$compose")
    # Bind mounts start with a dot; the other volumes are named ones.
    while read -r path; do
        [[ -e deploy/$path ]] || complain "$compose: $path: no such file beside it"
    done < <(grep -oE '^ *- \./[^:]+' "$compose" | sed -E 's/^ *- //')
done

((failures == 0)) || exit 1
echo "scripts and container files: ${#shell[@]} shell, ${#python[@]} Python, all passed"
