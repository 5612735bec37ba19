{{/* Image of all programs. */}}
{{- define "thunderfleet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of every object. Call with (dict "root" $ "component" "operator"). */}}
{{- define "thunderfleet.labels" -}}
app.kubernetes.io/name: thunderfleet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels that select pods; they must never change. */}}
{{- define "thunderfleet.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The annotation runbook_url of an alert, if alerts.runbookURL is set: (list $ "heading-of-docs/troubleshoot.md"). */}}
{{- define "thunderfleet.runbook" -}}
{{- with (index . 0).Values.alerts.runbookURL -}}
runbook_url: {{ printf "%s#%s" . (index $ 1) | quote }}
{{- end -}}
{{- end -}}

{{/* Namespace of all objects of the release that have one. */}}
{{- define "thunderfleet.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* Labels of a pod: those of every object, and the value podLabels: (dict "root" $ "component" "operator"). Ours come last and win. */}}
{{- define "thunderfleet.podLabels" -}}
{{- $own := include "thunderfleet.labels" . | fromYaml }}
{{- $added := (index .root.Values .component | default dict).podLabels | default dict }}
{{- toYaml (merge $own $added) }}
{{- end }}

{{/* The value podAnnotations of a component. */}}
{{- define "thunderfleet.podAnnotations" -}}
{{- with (index .root.Values .component | default dict).podAnnotations }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Annotations of a component's service account. */}}
{{- define "thunderfleet.accountAnnotations" -}}
{{- with ((index .root.Values .component | default dict).serviceAccount | default dict).annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Fields of a component's pod that values set: priority, secrets for registries, security of the pod. */}}
{{- define "thunderfleet.podFields" -}}
{{- $values := index .root.Values .component | default dict }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The security context of a component's container. */}}
{{- define "thunderfleet.containerSecurity" -}}
{{- with (index .root.Values .component | default dict).securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Environment variables of a component's container that values add. */}}
{{- define "thunderfleet.extraEnv" -}}
{{- with (index .root.Values .component | default dict).extraEnv }}
{{- toYaml . }}
{{- end }}
{{- end }}
