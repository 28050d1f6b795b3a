# shellcheck shell=bash
# What every script of this directory shares: versions, places, messages.

set -euo pipefail
umask 022

KUBERNETES=v1.34.4
ETCD=v3.6.8
COREDNS=v1.12.4
KIND=v0.33.0
HELM=v3.22.0
LOCAL_PATH=v0.0.30
DEBIAN=bookworm
PYTHON=3.12

CLUSTER_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${PENSTOCK_KUBERNETES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock-kubernetes}
NAME=${PENSTOCK_E2E_CLUSTER:-penstock-e2e}
DISK_GB_MIN=15

BASE_IMAGE=penstock-debian:$DEBIAN
PYTHON_IMAGE=penstock-python:$PYTHON
export KUBECONFIG=$CACHE/$NAME.kubeconfig

mkdir -p "$CACHE/bin" "$CACHE/log" "$CACHE/run"
# Debian's docker client matches its engine; another one in /usr/local may be too new for it.
export PATH="$CACHE/bin:/usr/bin:$PATH"

say() { printf '%s\n' "$*" >&2; }
die() { say "e2e cluster: $*"; exit 1; }

# busy LABEL COMMAND…: runs it with its output in log/LABEL.log; a line at the start, every
# half minute and at the end. A failure shows the end of the log and stops the script.
busy() {
  local label=$1 log began=$SECONDS job next=30
  shift
  log="$CACHE/log/${label//[^A-Za-z0-9.-]/-}.log"
  say "  $label …"
  # A process group of its own: when this script ends early, all of it ends.
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  set +m
  # shellcheck disable=SC2064
  trap "kill -TERM -- -$job 2>/dev/null || true" EXIT
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.3
    if ((SECONDS - began >= next)); then
      say "  $label … ${next} s"
      next=$((next + 30))
    fi
  done
  if ! wait "$job"; then
    tail -n 15 "$log" >&2
    die "$label failed; all of its output is in $log"
  fi
  trap - EXIT
  say "  $label: $((SECONDS - began)) s"
}

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: run this as root, or $2"; }

need_disk() {
  local free_gb
  free_gb=$(($(df --output=avail -k "$CACHE" | tail -n 1) / 1024 / 1024))
  ((free_gb >= DISK_GB_MIN)) ||
    die "$CACHE has $free_gb GB free, $DISK_GB_MIN GB are needed: make room or set PENSTOCK_KUBERNETES_CACHE"
}

have_image() { docker image inspect "$1" >/dev/null 2>&1; }
