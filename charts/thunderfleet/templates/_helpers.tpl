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
