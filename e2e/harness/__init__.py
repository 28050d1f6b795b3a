"""What scenarios are written with.

    runner ──▶ scenario(stage) ──▶ Stage: kubectl, nodes, api_server, penstock, workload()

Belongs here: wrappers around kubectl, docker and the node's own tools, each failure one clear
line; the recorded workload as a pod; registry, runner and report. Never here: what a single
scenario checks, and knowledge of how brokers work inside.
"""
