"""End-to-end scenarios on a real Kubernetes of three nodes, made on this machine.

    cluster/     the Kubernetes: scripts `up`, `down`, `network`
    harness/     what scenarios are written with: kubectl, nodes, a recorded workload, the runner
    scenarios/   one function per scenario: install, faults under load, …

Belongs here: what only a real cluster can show: pods, volumes, DNS, nodes that die, an API server
that is unavailable. Never here: anything a process-level test can show in seconds.
"""
