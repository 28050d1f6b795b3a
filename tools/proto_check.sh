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
[ -x node_modules/.bin/buf ] || npm ci --silent --no-audit --no-fund 2>/dev/null
node_modules/.bin/buf lint
node_modules/.bin/buf format --diff --exit-code
node_modules/.bin/buf breaking --against proto/baseline.binpb
