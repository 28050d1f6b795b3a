"""The broker process: its parts, how it starts and how it stops.

Belongs here: the command line (`main`) and connecting the parts (`process`). Only the entry point
imports this package. Never here: a part itself. The session with the controller is in `metadata`,
answers to clients are in `services`; replication, the store and the coordinators have packages of
their own.
"""
