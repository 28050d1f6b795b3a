#!/usr/bin/env bash
# Prints the path of Prometheus's promtool, and builds it once, from its Go module, if it is not there.
# Without `remove_all_sd` it contains the SDKs of all clouds, whose compilation takes gigabytes.
set -euo pipefail
version=v0.313.5
path=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-promtool/promtool-$version
mkdir -p "$(dirname "$path")"
exec 9>"$path.lock"
flock 9 # tests in several processes ask for it at the same time: one builds it, the others wait
if [ ! -x "$path" ]; then
  module=$(mktemp -d)
  trap 'rm -rf "$module"' EXIT
  cd "$module"
  go mod init promtool >&2
  timeout 120 go get "github.com/prometheus/prometheus/cmd/promtool@$version" >&2
  nice timeout 600 go build -trimpath -tags remove_all_sd -o "$path.new" github.com/prometheus/prometheus/cmd/promtool >&2
  mv "$path.new" "$path"
fi
echo "$path"
