"""Access to the Kubernetes API for the operator, the controller and the command line.

    names, resources, quantity, errors, kubeconfig   importable without the `kubernetes` package
    connect ──▶ api.Api     the API server to use; requests to it, bounded in time
    lease.Lease             elects one of several processes

Belongs here: what more than one of the three needs. Never here: the content of Penstock's own
objects; retries of a write whose outcome is unknown (the caller must read first). All calls block:
callers with an event loop run them in threads. The client library does not import this package.
"""
