"""Group coordinators of this broker: the shell around `penstock.core.groups`.

Belongs here: what groups add to a machine on a log (`logged`): members' streams (`coordinator`,
`streams`), the topics they may read (`catalog`), which coordinators are here (`coordinators`), lag
for Prometheus (`lag`). Never here: decisions about members or offsets, loading and appending, wire
types (except in `leaders`, which calls other brokers).
"""
