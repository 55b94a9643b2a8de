{{- define "antiphon.name" -}}
{{- if contains "antiphon" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-antiphon{{ end }}
{{- end }}

{{- define "antiphon.selector" -}}
app.kubernetes.io/name: antiphon
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "antiphon.labels" -}}
{{ include "antiphon.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "antiphon.metadata" -}}
metadata:
  name: {{ include "antiphon.name" . }}
  labels:
    {{- include "antiphon.labels" . | nindent 4 }}
{{- end }}

{{- define "antiphon.secret" -}}
{{- .Values.secret.existing | default (include "antiphon.name" .) }}
{{- end }}
