"""The broker process: what it is made of, how it starts and how it stops.

Belongs here: the command line (`main`) and putting the parts together (`process`). Nothing imports
this package but the entry point. Never here: a part itself. The session with the controller is in
`metadata`, answers to clients in `services`, replication, the store and the coordinators in
packages of their own.
"""
