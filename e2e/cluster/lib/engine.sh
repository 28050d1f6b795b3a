# shellcheck shell=bash
# A container engine: the one that runs already, or containerd and dockerd started by hand.
#
# Both run in sessions of their own, so that the cluster outlives the shell that made it. Their
# process ids and start times are kept: `down` stops exactly what was started here.

ENGINE_PACKAGES=(runc containerd docker.io iptables nftables debootstrap kmod)
SYS_RESOURCE_BIT=24

engine() {
  docker info >/dev/null 2>&1 && return
  need_root "starting a container engine" "start Docker yourself"
  if ! { command -v dockerd && command -v ctr && command -v runc; } >/dev/null; then
    command -v apt-get >/dev/null || die "no container engine: install Docker and start it"
    busy "package lists" apt-get update -qq
    busy "container engine packages" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -qq -y --no-install-recommends "${ENGINE_PACKAGES[@]}"
  fi
  local runtime=()
  if ! root_has_sys_resource; then
    # Plain runc refuses privileged containers when root itself lacks a capability.
    small_tool runc-bounded
    runtime=(--add-runtime "bounded=$CACHE/bin/runc-bounded" --default-runtime bounded)
  fi
  say "  starting containerd and dockerd"
  ctr version >/dev/null 2>&1 || daemon containerd containerd
  until_true 20 ctr version || die "containerd does not answer: see $CACHE/log/containerd.log"
  daemon dockerd dockerd --containerd=/run/containerd/containerd.sock --data-root="$CACHE/docker" \
    --exec-opt native.cgroupdriver=cgroupfs --storage-driver=overlay2 --mtu 1400 "${runtime[@]}"
  until_true 40 docker info || die "dockerd does not answer: see $CACHE/log/dockerd.log"
  # Three kubelets, and systemds below them, watch many files.
  sysctl -qw fs.inotify.max_user_instances=1024 || true
}

# Ends what `engine` started, unless containers are still running on it.
engine_down() {
  [ -e "$CACHE/run/dockerd" ] || return 0
  if [ -n "$(docker ps -q 2>/dev/null)" ]; then
    say "the engine keeps running: there are other containers on it"
    return 0
  fi
  local name
  for name in dockerd containerd; do stop_daemon "$name"; done
}

root_has_sys_resource() {
  local bounding
  bounding=$(awk '/^CapBnd/ {print $2}' /proc/self/status)
  (((0x$bounding >> SYS_RESOURCE_BIT) & 1))
}

daemon() { # daemon NAME COMMAND…
  local name=$1
  shift
  setsid nohup "$@" >"$CACHE/log/$name.log" 2>&1 </dev/null &
  printf '%s %s\n' $! "$(started_at $!)" >"$CACHE/run/$name"
}

stop_daemon() {
  local pid start
  read -r pid start <"$CACHE/run/$1" 2>/dev/null || return 0
  rm -f "$CACHE/run/$1"
  [ "$(started_at "$pid")" = "$start" ] || return 0 # that number is another process now
  kill -TERM "$pid"
  until_true 30 gone "$pid" || say "$1 (process $pid) does not end"
}

gone() { ! kill -0 "$1" 2>/dev/null; }

# A process's start time in clock ticks: with it a number names one process only.
started_at() { sed -E 's/.*\) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

until_true() { # until_true SECONDS COMMAND…
  local tries=$(($1 * 2))
  shift
  for ((; tries > 0; tries--)); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.5
  done
  return 1
}

# Can this machine pull images? A 300 kB image tells. PENSTOCK_E2E_PULL=yes|no skips the question.
can_pull() {
  case ${PENSTOCK_E2E_PULL:-} in yes) return 0 ;; no) return 1 ;; esac
  timeout 20 docker pull -q registry.k8s.io/pause:3.10 >/dev/null 2>&1
}
