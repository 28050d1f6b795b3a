"""The Kubernetes operator: custom resources in, StatefulSets and controller requests out.

    watch (Kopf) ─▶ wake a Cluster's worker ─▶ observe ─▶ plan (pure) ─▶ apply ─▶ status

Belongs here: everything that brings a Cluster and its Topics to the state their resources specify.
`model`, `plan`, `objects` and `status` are pure: no await, clock, network. Never here: the data
path (brokers serve without the operator), elections, ISRs, anything that needs a record. It talks
to brokers only through the public admin API.
"""
