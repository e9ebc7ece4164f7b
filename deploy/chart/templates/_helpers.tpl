{{/* Names are fixed: a cluster has one journal, and so one cagrpc; the servers know the Lease, the slack object and the
     roles of readers by name. */}}

{{- define "cagrpc.labels" -}}
{app.kubernetes.io/name: cagrpc, app.kubernetes.io/instance: {{ .Release.Name | quote }}}
{{- end -}}

{{- define "cagrpc.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .default) -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "cagrpc.host" -}}
cagrpc.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* The fields of its backend name it; of the simulated one there may be none. */}}
{{- define "cagrpc.backend" -}}
{{- $backend := .Values.config.backend | default dict -}}
{{- $found := "simulated" -}}
{{- range $name, $fields := $backend -}}
{{- if and (kindIs "map" $fields) (not (has $name (list "simulated" "file"))) -}}{{- $found = $name -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "cagrpc.isSimulated" -}}
{{- if eq (include "cagrpc.backend" .) "simulated" -}}true{{- end -}}
{{- end -}}

{{/* Whether instances become Nodes that nobody but cagrpc makes. */}}
{{- define "cagrpc.simulatesNodes" -}}
{{- $kubernetes := .Values.config.kubernetes | default dict -}}
{{- if and (include "cagrpc.isSimulated" .) (ne (toString $kubernetes.simulated_nodes) "false") -}}true{{- end -}}
{{- end -}}

{{/* Of a section of the configuration that has a switch `enabled`, on by default. */}}
{{- define "cagrpc.isEnabled" -}}
{{- if ne (toString ((. | default dict).enabled)) "false" -}}true{{- end -}}
{{- end -}}

{{/* An empty section is one, too. */}}
{{- define "cagrpc.hasSlack" -}}
{{- if kindIs "map" .Values.config.slack -}}true{{- end -}}
{{- end -}}

{{/* Whether it takes nodes away; YAML reads `on` without quotes as true. */}}
{{- define "cagrpc.consolidates" -}}
{{- if has (toString (.Values.config.consolidation | default dict).mode) (list "on" "true") -}}true{{- end -}}
{{- end -}}

{{- define "cagrpc.isPlain" -}}
{{- if (.Values.config.http | default dict).insecure -}}true{{- end -}}
{{- end -}}

{{- define "cagrpc.configuration" -}}
{{- $clientCa := ternary "/etc/cagrpc-client-ca/ca.crt" "/etc/cagrpc-tls/ca.crt" (not (empty .Values.tls.clientCaSecretName)) -}}
{{- $own := dict
  "tls" (dict "certificate" "/etc/cagrpc-tls/tls.crt" "key" "/etc/cagrpc-tls/tls.key" "client_ca" $clientCa)
  "kubernetes" (dict "in_cluster" true "namespace" .Release.Namespace) -}}
{{- if include "cagrpc.isSimulated" . -}}
{{- $_ := set $own "backend" (dict "file" "/var/lib/cagrpc-cloud/simulated.sqlite") -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml -}}
{{- end -}}

{{/* Of kinds that hold data: they stay, unless that is not wanted. */}}
{{- define "cagrpc.keep" -}}
{{- if .Values.crds.keep }}annotations: {helm.sh/resource-policy: keep}{{ end -}}
{{- end -}}

{{- define "cagrpc.subject" -}}
{kind: ServiceAccount, name: {{ .Values.serviceAccount.name }}, namespace: {{ .Release.Namespace }}}
{{- end -}}

{{- define "cagrpc.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "cagrpc.nobody" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}
