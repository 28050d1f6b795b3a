"""The Kubernetes operator: custom resources in, StatefulSets and controller requests out.

Belongs here: observe, plan (pure), apply, status. Never here: the data path; brokers serve with
the operator gone. Only the package's place is fixed so far; `penstock local` reads the same
manifests.
"""
