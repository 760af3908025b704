{{/* The image of all containers. */}}
{{- define "portway.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Labels of every object; the argument is a list of the root and the component. */}}
{{- define "portway.labels" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: portway-{{ $component }}
app.kubernetes.io/component: {{ $component }}
app.kubernetes.io/part-of: portway
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end }}

{{/* Labels that the agents' pods are found by; the operator's cilium-pod-labels has the first as its default. */}}
{{- define "portway.agent.selector" -}}
k8s-app: portway
app.kubernetes.io/name: portway-agent
{{- end }}

{{- define "portway.operator.selector" -}}
app.kubernetes.io/name: portway-operator
{{- end }}

{{/* Labels of pods besides, which do not change with the version; the argument is the component. */}}
{{- define "portway.podLabels" -}}
app.kubernetes.io/component: {{ . }}
app.kubernetes.io/part-of: portway
{{- end }}

{{/* Whether an operator works for the pod network; without one it has nothing to do. */}}
{{- define "portway.operator.enabled" -}}
{{- if and .Values.operator.enabled .Values.podNetwork.enabled -}}true{{- end -}}
{{- end }}

{{- define "portway.clusterPool" -}}
{{- if and .Values.podNetwork.enabled (eq .Values.ipam.mode "cluster-pool") -}}true{{- end -}}
{{- end }}

{{/* The URL of the API server, where it was given. */}}
{{- define "portway.apiServer" -}}
{{- $host := .Values.k8sServiceHost -}}
{{- if $host -}}
https://{{ if contains ":" $host }}[{{ trimAll "[]" $host }}]{{ else }}{{ $host }}{{ end }}:{{ .Values.k8sServicePort }}
{{- end -}}
{{- end }}

{{- define "portway.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Mistakes that the schema cannot see, told before anything is applied. */}}
{{- define "portway.validate" -}}
{{- $cidrs := .Values.ipam.operator -}}
{{- /* What permissions hang on, and where the probes ask. */ -}}
{{- range $key, $value := dict
  "enable-cilium-endpoint-slice" "ciliumEndpointSlice.enabled"
  "enable-pod-network" "podNetwork.enabled"
  "identity-management-mode" "identityManagementMode"
  "ipam" "ipam.mode"
  "skip-crd-creation" "crds.install"
  "unmanaged-pod-watcher-interval" "operator.unmanagedPodWatcher" -}}
{{- if hasKey $.Values.extraConfig $key -}}
{{- fail (printf "extraConfig.%s: set %s instead, on which permissions hang, too" $key $value) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "agent-health-port" "operator-api-serve-addr" -}}
{{- if hasKey $.Values.extraConfig $key -}}
{{- fail (printf "extraConfig.%s: the probes of the pods ask at its default; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- if not (or .Values.ipv4.enabled .Values.ipv6.enabled) -}}
{{- fail "ipv4.enabled and ipv6.enabled: set one of them to true" -}}
{{- end -}}
{{- if and .Values.podNetwork.enabled (gt (int .Values.cluster.id) 0) (eq .Values.cluster.name "default") -}}
{{- fail "cluster.id: set cluster.name, too; identities of clusters with the same name have the same labels" -}}
{{- end -}}
{{- if and .Values.podNetwork.enabled (not .Values.operator.enabled) (eq .Values.ipam.mode "cluster-pool") -}}
{{- fail "operator.enabled=false: nobody would cut nodes' prefixes from the pool; set ipam.mode=kubernetes" -}}
{{- end -}}
{{- if and .Values.podNetwork.enabled (not .Values.operator.enabled) (ne .Values.identityManagementMode "agent") -}}
{{- fail "operator.enabled=false: nobody would make identities; set identityManagementMode=agent" -}}
{{- end -}}
{{- if and .Values.podNetwork.enabled (not .Values.operator.enabled) .Values.ciliumEndpointSlice.enabled -}}
{{- fail "operator.enabled=false: nobody would make slices; set ciliumEndpointSlice.enabled=false" -}}
{{- end -}}
{{- if include "portway.clusterPool" . -}}
{{- if and .Values.ipv4.enabled (not $cidrs.clusterPoolIPv4PodCIDRList) -}}
{{- fail "ipam.mode=cluster-pool: set ipam.operator.clusterPoolIPv4PodCIDRList, or ipv4.enabled=false" -}}
{{- end -}}
{{- if and .Values.ipv6.enabled (not $cidrs.clusterPoolIPv6PodCIDRList) -}}
{{- fail "ipam.mode=cluster-pool: set ipam.operator.clusterPoolIPv6PodCIDRList, or ipv6.enabled=false" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podNetwork.enabled (eq .Values.routingMode "native") -}}
{{- if and .Values.ipv4.enabled .Values.enableIPv4Masquerade (not .Values.ipv4NativeRoutingCIDR) -}}
{{- fail "routingMode=native: set ipv4NativeRoutingCIDR to the prefix of all pods, or enableIPv4Masquerade=false" -}}
{{- end -}}
{{- if and .Values.ipv6.enabled .Values.enableIPv6Masquerade (not .Values.ipv6NativeRoutingCIDR) -}}
{{- fail "routingMode=native: set ipv6NativeRoutingCIDR to the prefix of all pods, enableIPv6Masquerade=false or ipv6.enabled=false" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A value of the configuration as text: numbers of values are floats, and large ones would be printed as 1e+06. */}}
{{- define "portway.text" -}}
{{- if kindIs "float64" . }}{{ if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/*
What the agent may do to its node. Loading programs and attaching them is BPF, PERFMON and NET_ADMIN; probing nodes is
NET_RAW; entering pods' network namespaces is SYS_ADMIN, finding them among the node's processes SYS_PTRACE. A process needs
no other capability. A container that has these alone has /proc/sys read-only, where ip_forward and the settings of pods'
interfaces are, and a profile of AppArmor or SELinux that keeps it from namespaces; and little is kept from whoever has
SYS_ADMIN and the node's processes. So it is privileged.
*/}}
{{- define "portway.agent.security" -}}
securityContext:
  privileged: true
{{- end }}

{{/* What outlives the agent. */}}
{{- define "portway.agent.mounts" -}}
# Before the cgroups: in an image where /var/run leads to /run it is the directory above them.
- name: state
  mountPath: /var/run/portway
- name: cgroup
  mountPath: /run/portway/cgroupv2
- name: bpf
  mountPath: /sys/fs/bpf
  mountPropagation: HostToContainer
{{- if .Values.podNetwork.enabled }}
- name: cni-conf
  mountPath: /host/etc/cni/net.d
{{- end }}
{{- end }}
