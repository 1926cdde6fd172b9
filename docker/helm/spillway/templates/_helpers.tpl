{{/* The name that all objects begin with. StatefulSets add 21 characters, and Kubernetes a hash of 11, to at most 63. */}}
{{- define "spillway.name" -}}
{{- $name := .Values.nameOverride | default (ternary .Release.Name (printf "%s-spillway" .Release.Name) (contains "spillway" .Release.Name)) -}}
{{- if gt (len $name) 30 -}}{{- fail (printf "%q has more than 30 characters: set nameOverride" $name) -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "spillway.labels" -}}
app.kubernetes.io/name: spillway
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What pods are selected by: a list of the root and the component. */}}
{{- define "spillway.selector" -}}
app.kubernetes.io/name: spillway
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "spillway.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Whether probes of gateways use TLS, and the name of the Secret with access files: empty, there are none. */}}
{{- define "spillway.accessSecret" -}}
{{- if .Values.access.secret -}}{{ .Values.access.secret }}{{- else if .Values.access.files -}}{{ include "spillway.name" . }}-access{{- end -}}
{{- end -}}

{{/* Mistakes that a pod would notice only when it runs, or never. */}}
{{- define "spillway.check" -}}
{{- if not .Values.coord.url -}}{{- fail "coord.url is not set: Spillway needs an etcd, such as etcds://etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379" -}}{{- end -}}
{{- if not .Values.peer.insecure -}}
{{- if not (and .Values.peer.storageSecret .Values.peer.gatewaySecret) -}}{{- fail "peer.storageSecret and peer.gatewaySecret are not set: name Secrets with certificates of `spillway certs`, or set peer.insecure for trials" -}}{{- end -}}
{{- else if or .Values.peer.storageSecret .Values.peer.gatewaySecret -}}{{- fail "peer.insecure is set, and so is a Secret with certificates: choose one" -}}
{{- end -}}
{{- range $k := list "ca" "cert" "key" "password" -}}
{{- if and (index $.Values.coord $k) (not $.Values.coord.secret) -}}{{- fail (printf "coord.%s names a key of coord.secret, which is not set" $k) -}}{{- end -}}
{{- end -}}
{{- if and .Values.access.secret .Values.access.files -}}{{- fail "access.secret and access.files are both set: choose one" -}}{{- end -}}
{{- if not (include "spillway.accessSecret" .) -}}
{{- if or .Values.access.webConfig .Values.access.tokens .Values.access.tls -}}{{- fail "access.webConfig, access.tokens and access.tls need access.secret or access.files" -}}{{- end -}}
{{- else if not (or .Values.access.webConfig .Values.access.tokens) -}}{{- fail "there are access files, but neither access.webConfig nor access.tokens names one: everybody would be let in" -}}
{{- end -}}
{{- if and .Values.access.files (not .Values.access.secret) -}}
{{- range $k := list "webConfig" "tokens" -}}
{{- $file := index $.Values.access $k -}}
{{- if and $file (not (hasKey $.Values.access.files $file)) -}}{{- fail (printf "access.%s is %q, which is not among access.files" $k $file) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $many := gt (len .Values.storage.zones) 1 -}}
{{- $seen := dict -}}
{{- range .Values.storage.zones -}}
{{- if hasKey $seen .name -}}{{- fail (printf "storage.zones has two zones %q" .name) -}}{{- end -}}
{{- $_ := set $seen .name true -}}
{{- if and $many (not .nodeSelector) (not .affinity) -}}{{- fail (printf "zone %q has neither nodeSelector nor affinity: with several zones its pods could run in another, and copies would lie in one zone while Spillway takes them for apart" .name) -}}{{- end -}}
{{- end -}}
{{- $config := mergeOverwrite (deepCopy .Values.config) .Values.gateway.config -}}
{{- range $i, $k := ($config.kafka | default list) -}}
{{- if not (dig "dead_letter" "topic" "" $k) -}}{{- fail (printf "kafka[%d] of the settings has no dead_letter.topic: a gateway's files end with its pod, and records that can never be written would be lost with them" $i) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* What both kinds of processes get by variables, which win over the file. */}}
{{- define "spillway.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: SPILLWAY_DATA_DIR, value: /data}
- {name: SPILLWAY_CONFIG_FILE, value: /etc/spillway/config/spillway.yml}
- {name: SPILLWAY_HTTP_SHUTDOWN_TIMEOUT, value: {{ printf "%ds" (int .Values.shutdownSeconds) | quote }}}
- {name: SPILLWAY_COORD_URL, value: {{ .Values.coord.url | quote }}}
{{- with .Values.coord.username }}
- {name: SPILLWAY_COORD_USERNAME, value: {{ . | quote }}}
{{- end }}
{{- range $k, $v := dict "ca" "CA" "cert" "CERT" "key" "KEY" "password" "PASSWORD_FILE" }}
{{- with index $.Values.coord $k }}
- {name: SPILLWAY_COORD_{{ $v }}, value: {{ printf "/etc/spillway/coord/%s" . | quote }}}
{{- end }}
{{- end }}
{{- if .Values.peer.insecure }}
- {name: SPILLWAY_PEER_INSECURE, value: "true"}
{{- else }}
- {name: SPILLWAY_PEER_CA, value: /etc/spillway/peer/ca.crt}
{{- if .Values.peer.crl }}
- {name: SPILLWAY_PEER_CRL, value: /etc/spillway/peer/ca.crl}
{{- end }}
{{- end }}
{{- end -}}

{{/* Mounts and volumes of both: a list of the root, the component, and the peer Secret's name. */}}
{{- define "spillway.mounts" -}}
- {name: data, mountPath: /data}
- {name: config, mountPath: /etc/spillway/config, readOnly: true}
{{- if .Values.coord.secret }}
- {name: coord, mountPath: /etc/spillway/coord, readOnly: true}
{{- end }}
{{- if not .Values.peer.insecure }}
- {name: peer, mountPath: /etc/spillway/peer, readOnly: true}
{{- end }}
{{- end -}}

{{- define "spillway.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: {name: {{ include "spillway.name" $root }}-{{ index . 1 }}}
{{- with $root.Values.coord.secret }}
- name: coord
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- if not $root.Values.peer.insecure }}
- name: peer
  secret: {secretName: {{ index . 2 | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* What both kinds of pods have in common. Service links would give pods variables such as SPILLWAY_PORT, which a process refuses as unknown. */}}
{{- define "spillway.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "spillway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
