#!/usr/bin/env bash
# The committed stubs are what proto/ generates; buf finds nothing to say.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
bash tools/proto.sh "$out"
for fresh in "$out"/penstock/proto/v1/*; do
  diff -q "$fresh" "src/penstock/proto/v1/$(basename "$fresh")" >/dev/null || {
    echo "src/penstock/proto/v1/$(basename "$fresh") is not what proto/ generates: run make proto" >&2
    exit 1
  }
done
if ! command -v npm >/dev/null; then
  [ -z "${CI:-}" ] || { echo "CI needs npm for buf" >&2; exit 1; }
  echo "buf skipped: npm is not installed (CI runs it)"
  exit 0
fi
# One tool of an exact version, with a binary per platform: a lock file would name only ours.
[ -x node_modules/.bin/buf ] || npm install --no-package-lock --no-audit --no-fund >/dev/null 2>&1 ||
  { echo "npm could not install @bufbuild/buf; run npm install to see why" >&2; exit 1; }
node_modules/.bin/buf lint
node_modules/.bin/buf format --diff --exit-code
node_modules/.bin/buf breaking --against proto/baseline.binpb
