# shellcheck shell=bash
# Images made here when none can be pulled, all on one Debian base:
#
#   penstock-debian   debootstrap                       ─▶ penstock-python (for python:3.12-slim)
#         └─▶ penstock-node: systemd, containerd, kubelet, and inside it as an archive the images
#             of the control plane, each one compiled binary

debian_image() {
  have_image "$BASE_IMAGE" && return
  need_root "debootstrap" "use a machine that can pull images"
  command -v debootstrap >/dev/null || busy "debootstrap package" apt-get install -qq -y debootstrap
  busy "Debian base image" make_debian
}

make_debian() {
  local root="$CACHE/run/rootfs" mirror authorities
  # This machine's own mirror; debootstrap's default when none is found.
  mirror=$(find /etc/apt -name '*.list' -o -name '*.sources' | xargs cat |
    grep -oE '^(URIs:|deb) .*https?://[^ ]*debian/?( |$)' | grep -oE 'https?://[^ ]*' | head -n 1) || true
  rm -rf --one-file-system "$root"
  debootstrap --variant=minbase --include=ca-certificates,iproute2,procps,curl "$DEBIAN" "$root" ${mirror:+"$mirror"}
  # Where a proxy opens TLS, its authority is needed inside as well.
  authorities=/usr/local/share/ca-certificates
  [ ! -d "$authorities" ] || cp -r "$authorities/." "$root$authorities/"
  chroot "$root" update-ca-certificates
  printf '%s\n' 'Acquire::Check-Valid-Until "false";' 'Acquire::Check-Date "false";' \
    'Acquire::Languages "none";' 'APT::Install-Recommends "false";' \
    'APT::Keep-Downloaded-Packages "false";' 'Dir::Cache::pkgcache "";' 'Dir::Cache::srcpkgcache "";' \
    'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };' >"$root/etc/apt/apt.conf.d/90penstock"
  tar -C "$root" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' -c . |
    docker import --change 'CMD ["bash"]' - "$BASE_IMAGE"
  rm -rf --one-file-system "$root"
}

# Stands in for python:3.12-slim: an interpreter built by pyenv, with pip and nothing else.
python_image() {
  have_image "$PYTHON_IMAGE" && return
  debian_image
  local found
  found=$(find "${PYENV_ROOT:-$HOME/.pyenv}/versions" -maxdepth 1 -name "$PYTHON.*" 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] || die "python:$PYTHON-slim cannot be pulled and pyenv has no Python $PYTHON: run pyenv install $PYTHON"
  busy "Python base image" make_python "$found"
}

make_python() {
  local context packages
  context=$(mktemp -d -p "$CACHE")
  packages="lib/python$PYTHON/site-packages"
  tar -C "$1" --exclude="lib/python$PYTHON/test" --exclude="lib/python$PYTHON/config-*" \
    --exclude="$packages" --exclude=__pycache__ -c . >"$context/python.tar"
  (cd "$1" && tar -c "$packages"/pip "$packages"/pip-*) >"$context/pip.tar"
  cat >"$context/Dockerfile" <<DOCKERFILE
FROM $BASE_IMAGE
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
RUN apt-get update \
 && apt-get install -y libssl3 libffi8 libsqlite3-0 libbz2-1.0 liblzma5 zlib1g libreadline8 libncursesw6 libuuid1 \
 && rm -rf /var/lib/apt/lists/*
ADD python.tar pip.tar /usr/local/
RUN ldconfig \
 && sed -i '1s|^#!.*|#!/usr/local/bin/python$PYTHON|' /usr/local/bin/pip* \
 && python3 -c 'import bz2, ctypes, lzma, sqlite3, ssl, zlib' && pip --version
CMD ["python3"]
DOCKERFILE
  docker build -t "$PYTHON_IMAGE" "$context"
  rm -r "$context"
}

# The tag carries a digest of what the node is made of: a changed file makes a new image.
node_image_tag() {
  local digest
  digest=$( (cd "$CLUSTER_DIR" && cat node/* go/*/go.mod && echo "$COREDNS $LOCAL_PATH $DEBIAN") |
    sha256sum | cut -c1-10)
  echo "penstock-node:$KUBERNETES-$digest"
}

node_image() {
  local tag
  tag=$(node_image_tag)
  have_image "$tag" && return
  need_disk
  debian_image
  busy "node image" make_node_image "$tag"
}

make_node_image() {
  local context="$CACHE/run/node" name every control_plane
  rm -rf "$context"
  mkdir -p "$context/bin" "$context/images"
  cp "$CLUSTER_DIR"/node/* "$context/"
  docker build -t penstock-node-net:local --target net "$context"
  control_plane=("rancher/local-path-provisioner:$LOCAL_PATH" "registry.k8s.io/etcd:${ETCD#v}-0")
  for name in kube-apiserver kube-controller-manager kube-scheduler; do
    wrap "registry.k8s.io/$name:$KUBERNETES" "$name" scratch
    control_plane+=("registry.k8s.io/$name:$KUBERNETES")
  done
  wrap "${control_plane[0]}" local-path-provisioner scratch
  wrap "${control_plane[1]}" etcd scratch
  every=("registry.k8s.io/kube-proxy:$KUBERNETES" registry.k8s.io/pause:3.10.1
    "registry.k8s.io/coredns/coredns:$COREDNS")
  wrap "${every[0]}" kube-proxy penstock-node-net:local
  wrap "${every[1]}" pause scratch
  wrap "${every[2]}" coredns scratch
  docker save -o "$context/images/every-node.tar" "${every[@]}" "$BASE_IMAGE"
  docker save -o "$context/images/control-plane.tar" "${control_plane[@]}"
  cp "$CACHE"/bin/{kubelet,kubeadm,kubectl} "$context/bin/"
  docker build -t "$1" --build-arg "VERSION=$KUBERNETES" "$context"
  rm -rf "$context"
}

wrap() { # wrap IMAGE BINARY BASE: an image around one binary
  local context
  context=$(mktemp -d -p "$CACHE")
  ln "$CACHE/bin/$2" "$context/$2" 2>/dev/null || cp "$CACHE/bin/$2" "$context/$2"
  printf 'FROM %s\nCOPY %s /usr/local/bin/%s\nENTRYPOINT ["/usr/local/bin/%s"]\n' "$3" "$2" "$2" "$2" \
    >"$context/Dockerfile"
  docker build -t "$1" "$context"
  rm -r "$context"
}
