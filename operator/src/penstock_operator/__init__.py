"""The Kubernetes operator: custom resources in, StatefulSets and controller requests out.

    watch (Kopf) ─▶ wake a Cluster's worker ─▶ observe ─▶ plan (pure) ─▶ apply ─▶ status

Belongs here: what brings a Cluster and its Topics to what their resources say. `model`, `plan`,
`objects` and `status` are pure: no await, clock, network. Never here: the data path (brokers serve
with the operator gone), elections, ISRs, anything that needs a record. It talks to brokers by the
public admin API only.
"""
