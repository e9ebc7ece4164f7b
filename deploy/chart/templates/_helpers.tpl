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

{{/* Whether it has nodes of its own; else it is the gRPC expander alone, of a cluster-autoscaler with another provider. */}}
{{- define "cagrpc.isProvider" -}}
{{- if eq .Values.mode "provider" -}}true{{- end -}}
{{- end -}}

{{/* Whether the expander is asked about node groups of another cloud provider. */}}
{{- define "cagrpc.ranksOthers" -}}
{{- $groups := list -}}
{{- range .Values.config.provisioners -}}{{- $groups = concat $groups (.groups | default list) -}}{{- end -}}
{{- if or (not (include "cagrpc.isProvider" .)) (include "cagrpc.configMaps" .) $groups -}}true{{- end -}}
{{- end -}}

{{/* Whether the expander answers every option unchanged, and compares what then came with what would have been planned. */}}
{{- define "cagrpc.isShadow" -}}
{{- if or (eq .Values.mode "shadow") (eq ((.Values.config.expander | default dict).mode | default "") "shadow") -}}true{{- end -}}
{{- end -}}

{{/* Which ConfigMaps of the cluster-autoscaler are read, as JSON; empty for none. The expander alone reads them unless
     they are null. */}}
{{- define "cagrpc.configMaps" -}}
{{- $expander := .Values.config.expander | default dict -}}
{{- $found := $expander.config_maps -}}
{{- if not (or (include "cagrpc.isProvider" .) (hasKey $expander "config_maps")) -}}{{- $found = dict -}}{{- end -}}
{{- if kindIs "map" $found -}}{{- toJson $found -}}{{- end -}}
{{- end -}}

{{/* The keys of taints that nodes of the provisioners register with and lose, of cagrpc's own form and Karpenter's, as
     flags of the cluster-autoscaler; it knows those with its own prefixes. */}}
{{- define "cagrpc.startupTaints" -}}
{{- $keys := list -}}
{{- range .Values.config.provisioners -}}
{{- $spec := .spec | default dict -}}
{{- $template := (($spec.template | default dict).spec) | default dict -}}
{{- range concat (.startup_taints | default list) ($spec.startupTaints | default list) ($template.startupTaints | default list) -}}
{{- if not (regexMatch "^(startup|ignore)-taint[.]cluster-autoscaler[.]kubernetes[.]io/" .key) -}}{{- $keys = append $keys .key -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $keys | uniq | sortAlpha }}
- --startup-taint={{ . }}
{{- end }}
{{- end -}}

{{/* Where another cluster-autoscaler runs. */}}
{{- define "cagrpc.autoscalerNamespace" -}}
{{- (((.Values.config.expander | default dict).config_maps) | default dict).namespace | default "kube-system" -}}
{{- end -}}

{{/* Who reaches the gRPC ports: the cluster-autoscaler beside it, or whoever is where another one runs, as its labels
     are not known. */}}
{{- define "cagrpc.autoscalerPeers" -}}
{{- if hasKey .Values.networkPolicy "autoscaler" -}}
{{- with .Values.networkPolicy.autoscaler -}}{{- toYaml . -}}{{- end -}}
{{- else if include "cagrpc.isProvider" . -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: cluster-autoscaler
{{- else -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ include "cagrpc.autoscalerNamespace" . }}
{{- end -}}
{{- end -}}

{{/* The fields of its backend name it; of the simulated one there may be none. */}}
{{- define "cagrpc.backend" -}}
{{- $backend := .Values.config.backend | default dict -}}
{{- $found := "simulated" -}}
{{- range $name, $fields := $backend -}}
{{- if and (or (kindIs "map" $fields) (kindIs "slice" $fields)) (not (has $name (list "simulated" "file"))) -}}{{- $found = $name -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "cagrpc.isSimulated" -}}
{{- if and (include "cagrpc.isProvider" .) (eq (include "cagrpc.backend" .) "simulated") -}}true{{- end -}}
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

{{/* Without provisioners: two node groups that are simulated. */}}
{{- define "cagrpc.firstLook" -}}
- name: default
  weight: 100
  node_groups:
    - {id: m7i.large, instance_type: m7i.large}
    - {id: m7i.4xlarge, instance_type: m7i.4xlarge}
{{- end -}}

{{/* Refuse what the server would: what is of nodes of its own. */}}
{{- define "cagrpc.refuseOwnNodes" -}}
{{- $config := .Values.config -}}
{{- $consolidation := toString (($config.consolidation | default dict).mode | default "off") -}}
{{- $found := list -}}
{{- if eq ($config.drive | default "") "plan" -}}{{- $found = append $found "config.drive: plan" -}}{{- end -}}
{{- if not (has $consolidation (list "off" "false")) -}}{{- $found = append $found "config.consolidation" -}}{{- end -}}
{{- if include "cagrpc.hasSlack" . -}}{{- $found = append $found "config.slack" -}}{{- end -}}
{{- range list "backend" "devices" "limits" -}}
{{- if index $config . -}}{{- $found = append $found (printf "config.%s" .) -}}{{- end -}}
{{- end -}}
{{- if .Values.clusterAutoscaler.enabled -}}{{- $found = append $found "clusterAutoscaler.enabled" -}}{{- end -}}
{{- if .Values.externalgrpc.wrapper.enabled -}}{{- $found = append $found "externalgrpc.wrapper" -}}{{- end -}}
{{- if $found -}}
{{- fail (printf "mode: %s has no nodes of its own, and found %s: leave out what is of nodes, or set mode: provider" .Values.mode (join ", " $found)) -}}
{{- end -}}
{{- end -}}

{{- define "cagrpc.configuration" -}}
{{- $config := deepCopy .Values.config -}}
{{- if include "cagrpc.isProvider" . -}}
{{- if not (hasKey $config "provisioners") -}}
{{- $_ := set $config "provisioners" (include "cagrpc.firstLook" . | fromYamlArray) -}}
{{- end -}}
{{- else -}}
{{- include "cagrpc.refuseOwnNodes" . -}}
{{- $expander := $config.expander | default dict -}}
{{- if eq .Values.mode "shadow" -}}{{- $_ := set $expander "mode" "shadow" -}}{{- end -}}
{{- with include "cagrpc.configMaps" . -}}{{- $_ := set $expander "config_maps" (fromJson .) -}}{{- end -}}
{{- $_ := set $config "expander" $expander -}}
{{- $_ := set $config "provider" (dict "enabled" false) -}}
{{- end -}}
{{- $clientCa := ternary "/etc/cagrpc-client-ca/ca.crt" "/etc/cagrpc-tls/ca.crt" (not (empty .Values.tls.clientCaSecretName)) -}}
{{- $own := dict
  "tls" (dict "certificate" "/etc/cagrpc-tls/tls.crt" "key" "/etc/cagrpc-tls/tls.key" "client_ca" $clientCa)
  "kubernetes" (dict "in_cluster" true "namespace" .Release.Namespace) -}}
{{- if include "cagrpc.isSimulated" . -}}
{{- $_ := set $own "backend" (dict "file" "/var/lib/cagrpc-cloud/simulated.sqlite") -}}
{{- end -}}
{{- mergeOverwrite $config $own | toYaml -}}
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
