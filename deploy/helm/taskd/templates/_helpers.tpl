{{/* What every object of the chart carries. */}}
{{- define "taskd.labels" -}}
app.kubernetes.io/name: taskd
app.kubernetes.io/component: controller
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What selects the pods: never changes from one version to the next. */}}
{{- define "taskd.selector" -}}
app.kubernetes.io/name: taskd
app.kubernetes.io/component: controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "taskd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default "taskd-controller" }}
{{- else -}}
{{ required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{/* Where the rank tables are inside the container; the jobs' templates name the same path on the hosts. */}}
{{- define "taskd.rankTableDir" -}}
/user/mindx-dl/ranktable
{{- end }}

{{/* Whether the controller makes certificates. */}}
{{- define "taskd.issues" -}}
{{- if and .Values.plane.enabled (not .Values.plane.insecure) (not .Values.plane.certificates) }}
{{- if .Values.certificates }}
{{- fail "plane: jobs are given the Secret that `certificates` names, so name one of the same authority in plane.certificates" }}
{{- end }}yes{{ end }}
{{- end }}

{{- define "taskd.rankTable" -}}
{{- if and .Values.rankTable.hostPath .Values.rankTable.existingClaim }}
{{- fail "rankTable: name hostPath or existingClaim, not both" }}
{{- end }}
{{- if or .Values.rankTable.hostPath .Values.rankTable.existingClaim }}yes{{ end }}
{{- end }}
