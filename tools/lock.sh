#!/usr/bin/env bash
# Renews every list of pinned packages, with the hashes of their files. Usage: tools/lock.sh UV
#
#   requirements.lock                       development: the package with all extras, tools, tests
#   tools/build-requirements.lock           what installs and builds
#   {broker_image,operator,examples/spark}/requirements.lock    the images, in the same versions
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1
lock() {
  local out=$1
  shift
  "$uv" pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-annotate --no-header "$@" -o "$out"
}
extras() { printf -- '--extra %s ' "$@"; }

lock tools/build-requirements.lock tools/build-requirements.in
# shellcheck disable=SC2046 # words, on purpose
lock requirements.lock pyproject.toml requirements.in -c tools/build-requirements.lock \
  $(extras arrow avro broker cli compression kafka operator spark ui verify)
# shellcheck disable=SC2046
lock broker_image/requirements.lock pyproject.toml broker_image/requirements.in \
  -c requirements.lock $(extras broker cli)
# shellcheck disable=SC2046
lock operator/requirements.lock pyproject.toml -c requirements.lock $(extras operator)
# shellcheck disable=SC2046
lock examples/spark/requirements.lock pyproject.toml -c requirements.lock $(extras spark)
