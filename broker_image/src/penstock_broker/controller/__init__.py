"""The controller process: the shell around `penstock.core.control`.

Belongs here: the store of documents (`metadata_store`), the loop that feeds the machine and
obeys it (`runtime`, `outbox`), the gRPC services (`sessions`, `admin`), conversion between the
machine's types and the wire (`wire`), metrics, the command line (`main`), all put together
(`process`) over what comes from outside (`seams`).

Never here: decisions about leaders, ISRs, placement, what is valid - those are the machine's.
"""
