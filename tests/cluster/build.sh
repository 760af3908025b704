#!/usr/bin/env bash
# Builds what a cluster of the tests runs, from pinned Go modules, into $PORTWAY_CACHE/bin (default: .cache/bin of the
# checkout). What is there already, at this version, is kept.
#
#   control-plane   etcd, kube-apiserver, kube-controller-manager, kubectl, kube-proxy
#   nodes           kubelet, kube-scheduler, and images to import: pods.tar (pause, pod) and coredns.tar
#   helm            helm, which renders deploy/portway
#
#   tests/cluster/build.sh [PART...]           (needs Go; `cargo xtask setup test` brings one where it is missing)
#   tests/cluster/build.sh --check [PART...]   only says by its exit code whether everything is there
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${PORTWAY_CACHE:-$here/../../.cache}/bin
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
version=v1.37.2
helm_version=$(sed -n 's,^\s*helm.sh/helm/v3 \(v[0-9.]*\).*,\1,p' "$here/helm/go.mod")
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath"

check=
[ "${1:-}" != --check ] || { check=1; shift; }
[ $# -gt 0 ] || set -- control-plane nodes helm

hash_of() { cat "$@" | sha256sum | cut -c1-16; }

# is_built STAMP-FILE STAMP
is_built() { [ "$(cat "$bin/$1" 2>/dev/null)" = "$2" ]; }

kubernetes() { # PROGRAM...
  local v=k8s.io/component-base/version
  local x="-X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=37 -X $v.gitTreeState=clean"
  x="$x -X k8s.io/client-go/pkg/version.gitVersion=$version"
  (cd "$here/kube" && go build -tags providerless -ldflags "-s -w $x" -o "$bin/" "${@/#/k8s.io/kubernetes/cmd/}")
}

control_plane() {
  echo "etcd: building (about 1 minute)"
  (cd "$here/etcd" && go build -ldflags "-s -w" -o "$bin/etcd" go.etcd.io/etcd/server/v3)
  echo "kube-apiserver, kube-controller-manager, kubectl, kube-proxy $version: building (5 to 15 minutes, once)"
  kubernetes kube-apiserver kube-controller-manager kubectl kube-proxy
}

nodes() {
  echo "kubelet, kube-scheduler $version: building (2 to 10 minutes, once)"
  kubernetes kubelet kube-scheduler
  echo "CoreDNS and the images: building (2 to 4 minutes, once)"
  (cd "$here/coredns" && go build -ldflags "-s -w" -o "$bin/" .)
  (cd "$here/images" && go build -ldflags "-s -w" -o "$bin/" ./pod &&
    go run ./pack "$bin/pods.tar" "portway.test/pause:1=$bin/pod,pause" "portway.test/pod:1=$bin/pod,serve" &&
    go run ./pack "$bin/coredns.tar" "portway.test/coredns:1=$bin/coredns")
  rm "$bin/pod" "$bin/coredns"
}

helm() {
  echo "helm $helm_version: building (1 to 4 minutes, once)"
  local v=helm.sh/helm/v3/internal/version.version
  (cd "$here/helm" && go build -ldflags "-s -w -X $v=$helm_version" -o "$bin/helm" helm.sh/helm/v3/cmd/helm)
}

for part in "$@"; do
  case $part in
    control-plane) file=.built
      stamp="$version kube-proxy $(hash_of "$here"/etcd/go.mod "$here"/kube/go.mod)" ;;
    nodes) file=.built-nodes
      stamp="$version $(hash_of "$here"/kube/go.mod "$here"/coredns/{go.mod,main.go} "$here"/images/{go.mod,*/main.go})" ;;
    helm) file=.built-helm
      stamp="$helm_version $(hash_of "$here/helm/go.mod")" ;;
    *) echo "build.sh: no part $part: control-plane, nodes or helm" >&2; exit 2 ;;
  esac
  if is_built "$file" "$stamp"; then
    [ -n "$check" ] || echo "$part ${stamp% *}: built already in $bin"
  elif [ -n "$check" ]; then
    exit 1
  else
    "${part/-/_}"
    echo "$stamp" >"$bin/$file"
  fi
done
