"""The shell around the replica machines: it carries out what they decide.

    images ──▶ assignment.ReplicaAssignment ──▶ replicas opened, told their state, removed
    events ──▶ replicas.ReplicaSet ──▶ ReplicaMachine.handle ──Ready──▶ writer, feeding, following

Belongs here: the machines of this broker and everything a `Ready` asks for: group commit, streams
from leaders and to followers, ISR changes, waking waiting fetches. Never here: rules (they live in
`penstock.core.replication`) and client requests (`services`).
"""
