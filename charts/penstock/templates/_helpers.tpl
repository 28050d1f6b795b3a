{{/* Names are fixed, not made from the release's: there is one operator per namespace. */}}
{{- define "penstock.name" -}}penstock-operator{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
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

{{/* The ClusterRole of all controllers; one per installation, as two may share a Kubernetes. */}}
{{- define "penstock.controllerRole" -}}
{{ include "penstock.name" . }}-{{ .Release.Namespace }}-controllers
{{- end }}

{{/* What the controllers of a Cluster do, in its namespace. */}}
{{- define "penstock.controllerRules" -}}
- apiGroups: [""]
  resources: [configmaps]      # the cluster's metadata
  verbs: [list, create, update, delete]
- apiGroups: [coordination.k8s.io]
  resources: [leases]          # which of them is active
  verbs: [get, create, update]
{{- end }}

{{/* What the operator does in every namespace it watches. It writes no roles: it binds controllers to
     the role above, and holds `bind` for nothing else. tests/penstock_operator/test_permissions.py
     compares these rules with the requests of the operator. */}}
{{- define "penstock.rules" -}}
- apiGroups: [penstock.dev]
  resources: [clusters, topics, consumergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [penstock.dev]
  resources: [clusters/status, topics/status, consumergroups/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [create, get, list, patch, watch]
{{- if .Values.consumerScaling.enabled }}
- apiGroups: [apps]
  resources: [deployments/scale]   # the targets of ConsumerGroups (spec.scaleTarget)
  verbs: [get, patch]
{{- end }}
- apiGroups: [""]
  resources: [services]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [create, get, list, patch]
- apiGroups: [""]
  resources: [serviceaccounts/token]   # to log in to brokers as <cluster>-admin
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]             # <cluster>-ca, <cluster>-ca-2: made, never read
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]          # topics changed through the brokers, <cluster>-trust and its copies,
  verbs: [create, delete, get, list, patch, watch]   # users' CAs, the owners of those Secrets
{{- if .Values.watchNamespaces }}
- apiGroups: [""]
  resources: [namespaces]          # a label asks for a copy
  verbs: [get]
{{- end }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [create, delete, get, list, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ include "penstock.controllerRole" . }}]
  verbs: [bind]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles]               # each Cluster had one of its own before there was that role
  verbs: [delete, list]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, get, list, patch, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, get, list, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [delete, list, patch, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]   # they grow; one that is lost is replaced
  verbs: [delete, list, patch, watch]
- apiGroups: [events.k8s.io]
  resources: [events]              # written; read for why a broker's pod cannot be created
  verbs: [create, list]
{{- end }}

{{/* What does not live in a namespace. */}}
{{- define "penstock.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]            # a label of its node is the rack of a broker; whether the node of a
  verbs: [get, list]            # volume is gone, by its name or by its hostname
- apiGroups: [""]
  resources: [persistentvolumes]   # which node a volume is on, while no node can take its pod
  verbs: [get]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]   # whether volumes can grow
  verbs: [get]
{{- if not .Values.watchNamespaces }}
- apiGroups: [""]
  resources: [namespaces]       # a label asks for a copy of <cluster>-trust
  verbs: [list, watch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{/* Of a policy about deletions: who is let through, and how others get there. A namespace that goes must
     not hang on what is in it. The namespace's controller may not know yet that it goes; the first of the
     four accounts is all of Kubernetes' controllers, where they have none of their own. */}}
{{- define "penstock.deletionVariables" -}}
- name: letThrough
  expression: >-
    has(oldObject.metadata.deletionTimestamp) ||
    (namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp)) ||
    request.userInfo.username in [
    'system:kube-controller-manager',
    'system:serviceaccount:kube-system:generic-garbage-collector',
    'system:serviceaccount:kube-system:namespace-controller',
    'system:serviceaccount:kube-system:statefulset-controller',
    'system:serviceaccount:{{ .Release.Namespace }}:{{ .Values.serviceAccount.name }}'] ||
    (has(oldObject.metadata.annotations) &&
    'penstock.dev/confirm-delete' in oldObject.metadata.annotations &&
    oldObject.metadata.annotations['penstock.dev/confirm-delete'] == oldObject.metadata.name)
- name: confirm
  expression: >-
    ' kubectl annotate ' + request.resource.resource + ' ' + oldObject.metadata.name +
    (namespaceObject == null ? '' : ' -n ' + request.namespace) +
    ' penstock.dev/confirm-delete=' + oldObject.metadata.name
{{- end }}

{{/* Of the binding of a policy. */}}
{{- define "penstock.watchedOnly" -}}
{{- with .Values.watchNamespaces }}
matchResources:
  namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values:
          {{- toYaml . | nindent 10 }}
{{- end }}
{{- end }}
