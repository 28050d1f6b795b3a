"""The `penstock` program, also installed as `kubectl-penstock`.

What belongs here: reading the command line, calling `penstock.client`, printing for people and for
programs. What must never be here: anything that a Python program could not do through
`penstock.client` as well, and imports at module level that `--help` does not need (grpc, pyarrow,
yaml): those are inside the functions that use them, and a test counts them.

`penstock local` and `penstock dump-log` run code of the broker distribution. The layers forbid
importing it here, and rightly: the CLI works without it. `extras` loads it by name, at run time,
and says what to install if it is missing; that is the one documented exception.
"""
