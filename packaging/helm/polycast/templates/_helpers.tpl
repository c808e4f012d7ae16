{{/* The name of all that belongs to a release: the release's own, where that says what it is. */}}
{{- define "polycast.name" -}}
{{- if contains "polycast" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-polycast" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which pods are chosen; they never change. Takes the context and the part. */}}
{{- define "polycast.selector" -}}
app.kubernetes.io/name: polycast
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "polycast.labels" -}}
{{ include "polycast.selector" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version }}
{{- end -}}

{{- define "polycast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Where agents find the managers: one by its Service, several each by its own name, as they call each other. */}}
{{- define "polycast.managers" -}}
{{- $name := printf "%s-manager" (include "polycast.name" .) -}}
{{- $port := .Values.manager.port | int -}}
{{- $namespace := .Release.Namespace -}}
{{- if gt (int .Values.manager.replicas) 1 -}}
{{- range $number := until (int .Values.manager.replicas) -}}
{{- if $number }},{{ end -}}
{{- printf "%s-%d.%s.%s.svc:%d" $name $number $name $namespace $port -}}
{{- end -}}
{{- else -}}
{{- printf "%s.%s.svc:%d" $name $namespace $port -}}
{{- end -}}
{{- end -}}

{{/* Rights of a container. It runs as root without any capability: the key's file may be readable for its owner only, and a Secret's
     files and a node's folders are root's. */}}
{{- define "polycast.rights" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The settings of the managers. */}}
{{- define "polycast.manager-settings" -}}
listen = "0.0.0.0:{{ .Values.manager.port }}"
key-file = "/etc/polycast/key/cluster.key"
http = "0.0.0.0:{{ .Values.metrics.port }}"
{{- with .Values.manager.settings }}
{{ . | trim }}
{{- end }}
{{- if .Values.etcd.endpoints }}

[etcd]
{{- if le (int .Values.manager.replicas) 1 }}
endpoints = {{ .Values.etcd.endpoints | toJson }}
advertise = {{ include "polycast.managers" . | quote }}
{{- end }}
prefix = {{ .Values.etcd.prefix | quote }}
{{- if .Values.etcd.secret }}
ca = "/etc/polycast/etcd/ca.crt"
{{- if .Values.etcd.clientCertificate }}
cert = "/etc/polycast/etcd/tls.crt"
key = "/etc/polycast/etcd/tls.key"
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The settings of the agents. */}}
{{- define "polycast.agent-settings" -}}
manager = {{ include "polycast.managers" . | quote }}
key-file = "/etc/polycast/key/cluster.key"
store = {{ .Values.agent.store.path | quote }}
store-max = {{ .Values.agent.store.max | quote }}
socket = "{{ .Values.agent.socketFolder }}/agent.sock"
socket-mode = {{ .Values.agent.socketMode | quote }}
control-port = {{ .Values.agent.port }}
http = "{{ if .Values.metrics.agentsForAll }}0.0.0.0{{ else }}127.0.0.1{{ end }}:{{ .Values.metrics.port }}"
{{- with .Values.agent.interface }}
interface = {{ . | quote }}
{{- end }}
{{- with .Values.agent.settings }}
{{ . | trim }}
{{- end }}
{{- if .Values.hub.enabled }}
{{- if not .Values.hub.allow }}
{{- fail "hub.enabled needs hub.allow: the networks of the pods that may ask, such as 10.244.0.0/16" }}
{{- end }}

[hub]
listen = "0.0.0.0:{{ .Values.hub.port }}"
upstream = {{ .Values.hub.upstream | quote }}
allow = {{ .Values.hub.allow | toJson }}
{{- end }}
{{- if .Values.oci.enabled }}

[oci]
listen = "127.0.0.1:{{ .Values.oci.port }}"
registries = {{ .Values.oci.registries | toJson }}
{{- end }}
{{- end -}}
