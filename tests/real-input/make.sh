#!/usr/bin/env bash
# Makes cluster.yaml: what `kubectl get svc,endpointslices,pods,nodes -A -o yaml` prints on a real API server with a
# sample cluster. etcd, kube-apiserver and kube-controller-manager run in a network namespace without a way out.
#
#   tests/real-input/make.sh        (root; builds the control plane first if need be; about a minute after that)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${PORTWAY_CACHE:-$here/../../.cache}/bin
if [ "${1:-}" != inside ]; then
  "$here/../cluster/build.sh" control-plane
  exec unshare --net -- "$0" inside
fi
ip link set lo up
ip address add 10.77.0.1/32 dev lo
ip -6 address add fd00:77::1/128 dev lo nodad

run=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$run"
}
trap finish EXIT
start() { local name=$1; shift; "$@" >"$run/$name.log" 2>&1 & pids+=($!); }
until_ok() { # until_ok SECONDS WHAT COMMAND...
  local limit=$(($(date +%s) + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt "$limit" ] || { echo "$what: not after the time allowed" >&2; tail -5 "$run"/*.log >&2; exit 1; }
    sleep 0.2
  done
}

cd "$run"
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 2 -subj /CN=ca -out ca.crt -addext keyUsage=critical,digitalSignature,keyCertSign
openssl genrsa -out sa.key 2048 2>/dev/null
cert() { # cert NAME SUBJECT SAN
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -new -key "$1.key" -subj "$2" | openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
    -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "$3" ] || echo "subjectAltName=$3") -out "$1.crt" 2>/dev/null
}
cert apiserver /CN=kube-apiserver IP:10.77.0.1,IP:127.0.0.1,IP:10.96.0.1
cert admin /O=system:masters/CN=admin ""
cat >kubeconfig <<E
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.77.0.1:6443", certificate-authority: $run/ca.crt}}]
users: [{name: u, user: {client-certificate: $run/admin.crt, client-key: $run/admin.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
E
k() { timeout 60 "$bin/kubectl" --kubeconfig "$run/kubeconfig" "$@"; }
services=10.96.0.0/16,fd00:10:96::/112

start etcd "$bin/etcd" --data-dir "$run/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
  --initial-cluster default=http://127.0.0.1:2380
start apiserver "$bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --bind-address 10.77.0.1 \
  --advertise-address 10.77.0.1 --tls-cert-file apiserver.crt --tls-private-key-file apiserver.key \
  --client-ca-file ca.crt --service-account-issuer https://kubernetes.default.svc \
  --service-account-key-file sa.key --service-account-signing-key-file sa.key \
  --service-cluster-ip-range "$services" --authorization-mode Node,RBAC --allow-privileged=true
until_ok 60 "API server" k get --raw /readyz
start controllers "$bin/kube-controller-manager" --kubeconfig kubeconfig --leader-elect=false \
  --service-account-private-key-file sa.key --root-ca-file ca.crt --bind-address 127.0.0.1 \
  --allocate-node-cidrs=false --service-cluster-ip-range "$services" \
  --controllers='*,-node-lifecycle-controller,-pod-garbage-collector-controller' --use-service-account-credentials
until_ok 60 "default service account" k get serviceaccount default -n default

python3 "$here/make-objects.py" >objects.json
k create namespace warm-up >/dev/null
python3 - <<'E'
import json
objects = json.load(open("objects.json"))["items"]
early = [o for o in objects if o["kind"] in ("Node", "Namespace")]
late = [o for o in objects if o["kind"] not in ("Node", "Namespace")]
for name, items in (("early", early), ("late", late)):
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, open(name + ".json", "w"))
E
k apply -f early.json >/dev/null
for namespace in shop media infra batch kube-system; do
  until_ok 60 "service account of $namespace" k get serviceaccount default -n $namespace
done
k create -f late.json >/dev/null
# The status that a kubelet or a cloud controller would report.
python3 - >patches <<'E'
import json
for o in json.load(open("objects.json"))["items"]:
    status = o["metadata"].get("annotations", {}).get("portway.test/status")
    if status:
        print(o["kind"].lower(), o["metadata"].get("namespace", "default"), o["metadata"]["name"], json.dumps({"status": json.loads(status)}), sep="\t")
E
while IFS=$'\t' read -r kind namespace name patch; do
  k patch "$kind" "$name" -n "$namespace" --subresource=status --type=merge -p "$patch" >/dev/null
  k annotate "$kind" "$name" -n "$namespace" portway.test/status- >/dev/null
done <patches
k delete namespace warm-up --wait=false >/dev/null
k delete pod leaving-1 last-0 -n shop --wait=false >/dev/null
# Settled: the last pod that leaves is in its slice as terminating.
until_ok 60 "terminating endpoint of shop/last" \
  bash -c "'$bin/kubectl' --kubeconfig '$run/kubeconfig' get endpointslices -n shop -l kubernetes.io/service-name=last -o yaml | grep -q 'terminating: true'"
until_ok 60 "endpoints of shop/leaving" \
  bash -c "'$bin/kubectl' --kubeconfig '$run/kubeconfig' get endpointslices -n shop -l kubernetes.io/service-name=leaving -o yaml | grep -q 'terminating: true'"
sleep 2 # the controllers' batching: endpoint updates of the last patches
k get svc,endpointslices,pods,nodes -A -o yaml >"$here/cluster.yaml"
echo "wrote $here/cluster.yaml: $(grep -c '^  kind: ' "$here/cluster.yaml") objects of $("$bin/kubectl" --kubeconfig kubeconfig version -o json | python3 -c 'import json,sys; print(json.load(sys.stdin)["serverVersion"]["gitVersion"])')"
