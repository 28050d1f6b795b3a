"""Transactions on this broker: coordinators led here, and the calls between brokers.

    partitions, groups here ──joins──▶ links ──▶ the id's coordinator, here or elsewhere
    coordinators here ───────ends───▶ links ──▶ the participant's leader, here or elsewhere
    calls of other brokers ─────────▶ here ───▶ coordinators, groups, replicas of this broker

Belongs here: the hosts of coordinators (`coordinator`, `coordinators`), calls between brokers
(`lane`, `links`, `transport`), and carrying out incoming calls (`here`). Never here: what a
transaction may do (`penstock.core.transactions`, the machines of replicas and groups), what clients
call (`services`).
"""
