#!/usr/bin/env bash
# Builds etcd, kube-apiserver, kube-controller-manager, kubectl and kube-proxy from their pinned Go modules into
# $PORTWAY_CACHE/bin (default: .cache/bin of the checkout). What is there already, at this version, is kept.
#
#   tests/cluster/build.sh            (needs Go; `cargo xtask setup test` brings one where it is missing)
#   tests/cluster/build.sh --check    only says by its exit code whether everything is there
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${PORTWAY_CACHE:-$here/../../.cache}/bin
mkdir -p "$bin" && bin=$(cd "$bin" && pwd)
version=v1.37.2
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath"

stamp="$version kube-proxy $(cat "$here"/etcd/go.mod "$here"/kube/go.mod | sha256sum | cut -c1-16)"
if [ "$(cat "$bin/.built" 2>/dev/null)" = "$stamp" ]; then
  echo "control plane $version: built already in $bin"
  exit 0
fi
[ "${1:-}" != --check ] || exit 1
echo "etcd: building (about 1 minute)"
(cd "$here/etcd" && go build -ldflags "-s -w" -o "$bin/etcd" go.etcd.io/etcd/server/v3)
echo "kube-apiserver, kube-controller-manager, kubectl, kube-proxy $version: building (5 to 15 minutes, once)"
v=k8s.io/component-base/version
x="-X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=37 -X $v.gitTreeState=clean"
x="$x -X k8s.io/client-go/pkg/version.gitVersion=$version"
(cd "$here/kube" && go build -tags providerless -ldflags "-s -w $x" -o "$bin/" \
  k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes/cmd/kubectl \
  k8s.io/kubernetes/cmd/kube-proxy)
echo "$stamp" >"$bin/.built"
