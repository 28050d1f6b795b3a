# shellcheck shell=bash
# Everything that is compiled from Go modules, into $CACHE/bin. What is there in the right version
# stays: a binary's own build information is asked, so an old cache is never trusted by name.

# Order matters: the first two are all that contract tests against a real API server need.
KUBERNETES_BINARIES=(kube-apiserver kubectl kubelet kubeadm kube-controller-manager kube-scheduler kube-proxy)

need_go() {
  command -v go >/dev/null || [ -x /usr/local/go/bin/go ] ||
    die "Kubernetes is compiled here because no image can be pulled, and Go is missing: install Go 1.24 or newer"
  command -v go >/dev/null || export PATH="$PATH:/usr/local/go/bin"
}

# api_binaries: kube-apiserver, etcd. client_binaries: kind, kubectl, helm. binaries: all.
api_binaries() {
  need_go
  kubernetes_binary kube-apiserver
  module_binary etcd go.etcd.io/etcd/server/v3 "$ETCD" in_module etcd go.etcd.io/etcd/server/v3
}

client_binaries() {
  command -v kubectl >/dev/null || { need_go; kubernetes_binary kubectl; }
  command -v kind >/dev/null || { need_go; module_binary kind sigs.k8s.io/kind "$KIND" installed ""; }
  command -v helm >/dev/null || { need_go; module_binary helm helm.sh/helm/v3 "$HELM" installed /cmd/helm; }
}

binaries() {
  local name
  api_binaries
  for name in "${KUBERNETES_BINARIES[@]}"; do kubernetes_binary "$name"; done
  module_binary kind sigs.k8s.io/kind "$KIND" installed ""
  module_binary helm helm.sh/helm/v3 "$HELM" installed /cmd/helm
  module_binary coredns github.com/coredns/coredns "$COREDNS" installed ""
  module_binary local-path-provisioner github.com/rancher/local-path-provisioner "$LOCAL_PATH" installed ""
  small_tool pause
}

kubernetes_binary() {
  module_binary "$1" k8s.io/kubernetes "$KUBERNETES" in_module kubernetes "k8s.io/kubernetes/cmd/$1"
}

# module_binary NAME MODULE VERSION HOW…: compiles unless bin/NAME was built from MODULE VERSION.
module_binary() {
  local name=$1 module=$2 version=$3 how=$4
  shift 4
  built_from "$CACHE/bin/$name" "$module" "$version" && return
  need_disk
  case $how in
    in_module) busy "compiling $name" compile_in_module "$name" "$@" ;;
    installed) busy "compiling $name" compile_installed "$name" "$module$1@$version" ;;
  esac
}

built_from() { # FILE MODULE VERSION
  [ -x "$1" ] && go version -m "$1" 2>/dev/null |
    awk -v module="$2" -v version="$3" \
      '($1 == "mod" || $1 == "dep") && $2 == module && $3 == version {found = 1} END {exit !found}'
}

compile_in_module() { # NAME DIRECTORY PACKAGE
  local component=k8s.io/component-base/version flags="-s -w"
  [ "$2" = kubernetes ] && flags+=" -X $component.gitVersion=$KUBERNETES -X $component.gitTreeState=clean
    -X $component.gitMajor=1 -X $component.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES")
    -X k8s.io/client-go/pkg/version.gitVersion=$KUBERNETES"
  cd "$CLUSTER_DIR/go/$2"
  quiet_go build -o "$CACHE/bin/.$1" -ldflags "${flags//$'\n'/ }" "$3"
  mv "$CACHE/bin/.$1" "$CACHE/bin/$1"
}

compile_installed() { # NAME PACKAGE@VERSION
  local into flags="-s -w" rules
  # Without a cluster, Helm judges charts by the Kubernetes that it was told when it was compiled.
  [ "$1" = helm ] && for rules in helm.sh/helm/v3/pkg/{chartutil,lint/rules}; do
    flags+=" -X $rules.k8sVersionMajor=1 -X $rules.k8sVersionMinor=$(cut -d. -f2 <<<"$KUBERNETES")"
  done
  into=$(mktemp -d -p "$CACHE")
  GOBIN=$into quiet_go install -ldflags "$flags" "$2"
  mv "$into/$1" "$CACHE/bin/$1"
  rmdir "$into"
}

small_tool() { # our own programs in go/tools: seconds
  need_go
  local source="$CLUSTER_DIR/go/tools/$1/main.go"
  [ -x "$CACHE/bin/$1" ] && [ ! "$source" -nt "$CACHE/bin/$1" ] && return
  (cd "$CLUSTER_DIR/go/tools" && quiet_go build -o "$CACHE/bin/$1" -ldflags "-s -w" "./$1") ||
    die "compiling $1 failed"
}

# Static, the same everywhere, and last in line for the processor.
quiet_go() {
  local task=$1
  shift
  CGO_ENABLED=0 GOFLAGS= nice -n 5 go "$task" -trimpath -buildvcs=false "$@"
}
