#!/usr/bin/env bash
# The Go client in examples/go: its stubs are what proto/ generates, and its tests pass.
# `tools/go_check.sh --write` renews the stubs. Needs go and npm, and the network once; not a part
# of `make test`, so that this does not need them.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
buf=$root/node_modules/.bin/buf
[ -x "$buf" ] || (cd "$root" && npm install --no-package-lock --no-audit --no-fund >/dev/null)
cd "$root/examples/go"
case ${1:-} in
  --write)
    exec "$buf" generate ../.. --template buf.gen.yaml
    ;;
  "") ;;
  *)
    echo "usage: tools/go_check.sh [--write]" >&2
    exit 2
    ;;
esac
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$buf" generate ../.. --template buf.gen.yaml --output "$fresh"
diff -r "$fresh/penstockv1" penstockv1 || {
  echo "examples/go/penstockv1 is not what proto/ generates: run tools/go_check.sh --write" >&2
  exit 1
}
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { echo "gofmt -w would change: $unformatted" >&2; exit 1; }
go mod tidy -diff
go vet ./...
go test ./...
