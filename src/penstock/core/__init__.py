"""The decisions of Penstock as plain functions and state machines.

Belongs here: record batches (`columns`, `encode`, `records`), keys to partitions
(`partitioner`), topic names and settings (`topic`), manifests (`manifest`), the replication
machine (`replication`), the controller's machine (`control`), consumer groups (`groups`):
everything that can be decided from its arguments alone, so that a simulator can run it in virtual
time and another language can copy it.

Never here: await, threads, a clock, randomness, logging, files, the network, environment
variables, grpc or protobuf. Time and random numbers come in as arguments; effects go out as
data that a shell carries out. Wire types stay out too: `penstock.rpc` translates.
"""
