"""The controller process: the shell around `penstock.core.control`.

Belongs here: the store of documents (`metadata_store`), the loop that feeds the machine and carries
out its decisions (`runtime`, `store_task`, `outbox`), the gRPC services (`sessions`, `admin`),
conversion between the machine's types and the wire (`wire`), metrics, the command line (`main`),
all connected by `process`, with everything from outside passed in (`seams`).

Never here: decisions about leaders, ISRs, placement, what is valid: the machine makes those.
"""
