"""The controller process: the shell around `penstock.core.control`.

Belongs here: the store of documents (`metadata_store`), the loop that feeds the machine and
obeys it (`runtime`, `outbox`), the gRPC services (`sessions`, `admin`), conversion between the
machine's types and the wire (`wire`), what all of it stands on (`seams`), metrics, the command
line (`main`).

Never here: decisions about leaders, ISRs, placement, what is valid - those are the machine's.
"""
