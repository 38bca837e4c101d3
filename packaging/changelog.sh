#!/usr/bin/env bash
# Prints the section of CHANGELOG.md about one version; fails if there is none, or if it is too long for release
# notes.
#
#   packaging/changelog.sh 0.1.0
#   packaging/changelog.sh Unreleased
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:?"usage: packaging/changelog.sh VERSION"}
screen=60
notes=$(awk -v heading="## [$version]" 'index($0, "## [") == 1 { on = index($0, heading) == 1; next } on' CHANGELOG.md)
if [[ -z ${notes//[[:space:]]/} ]]; then
    echo "packaging/changelog.sh: CHANGELOG.md has nothing under '## [$version]'" >&2
    exit 1
fi
lines=$(wc -l <<<"$notes")
if ((lines > screen)); then
    echo "packaging/changelog.sh: $lines lines under '## [$version]': more than a screen of $screen: shorten them before the release" >&2
    exit 1
fi
printf '%s\n' "$notes"
