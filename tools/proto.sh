#!/usr/bin/env bash
# Generates the stubs of proto/ below the folder given. Usage: tools/proto.sh OUT
set -euo pipefail
out=$1
bin=${VENV:-.venv}/bin
mkdir -p "$out"
PATH="$bin:$PATH" "$bin/python" -m grpc_tools.protoc -Iproto --python_out="$out" \
  --grpc_python_out="$out" --mypy_out=quiet:"$out" --mypy_grpc_out=quiet:"$out" \
  proto/penstock/proto/v1/*.proto
# Files without services get empty gRPC stubs; they would only confuse.
rm -f "$out"/penstock/proto/v1/{access,errors,records,streams}_pb2_grpc.py*
