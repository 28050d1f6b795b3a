#!/usr/bin/env bash
# Prints the path of a program that reads the Prometheus operator's objects strictly (monitoring_objects/main.go), and
# builds it once, with the Go module of their types, if it is not there.
set -euo pipefail
version=v0.80.0
source=$(cd "$(dirname "$0")" && pwd)/monitoring_objects/main.go
path=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-promtool/monitoring-objects-$version-$(sha256sum "$source" | cut -c1-8)
if [ ! -x "$path" ]; then
  module=$(mktemp -d)
  trap 'rm -rf "$module"' EXIT
  cp "$source" "$module"
  cd "$module"
  go mod init objects >&2
  timeout 120 go get "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1@$version" >&2
  mkdir -p "$(dirname "$path")"
  nice timeout 600 go build -trimpath -o "$path.new" . >&2
  mv "$path.new" "$path"
fi
echo "$path"
