{{/* Names are fixed, not made from the release's: there is one operator per namespace. */}}
{{- define "penstock.name" -}}penstock-operator{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* repository@digest, or repository:tag. Called with a list: the image's values, the context. */}}
{{- define "penstock.image" -}}
{{- $image := index . 0 }}
{{- $context := index . 1 }}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $context.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* What the operator does in every namespace it watches.
     The API server lets nobody grant what they do not hold: configmaps and leases are also what the
     Role of each Cluster's controllers says (create … watch), word by word. */}}
{{- define "penstock.rules" -}}
- apiGroups: [penstock.dev]
  resources: [clusters, topics, consumergroups]
  verbs: [get, list, watch, patch, update]
- apiGroups: [penstock.dev]
  resources: [clusters/status, topics/status, consumergroups/status]
  verbs: [get, patch, update]
- apiGroups: [penstock.dev]
  resources: [clusters/finalizers, topics/finalizers, consumergroups/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [create, delete, get, list, patch, update, watch]
{{- if .Values.consumerScaling.enabled }}
- apiGroups: [apps]
  resources: [deployments/scale]   # the targets of ConsumerGroups (spec.scaleTarget)
  verbs: [get, patch]
{{- end }}
- apiGroups: [""]
  resources: [services, serviceaccounts, configmaps]
  verbs: [create, delete, get, list, patch, update, watch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, delete, get, list, patch, update, watch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [create, delete, get, list, patch, update, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, delete, get, list, patch, update, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, delete, get, list, patch, update, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* What does not live in a namespace. */}}
{{- define "penstock.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]            # a label of its node is the rack of a broker
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]   # whether volumes can grow
  verbs: [get]
{{- if not .Values.watchNamespaces }}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
{{- end }}
{{- end }}
