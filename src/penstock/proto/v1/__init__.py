"""Version 1 of the protocol, generated from `proto/` by `make proto`; never edited by hand."""
