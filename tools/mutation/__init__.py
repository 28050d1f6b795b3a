"""Mutation testing: change the product a little, run the tests that matter, see whether one fails.

Belongs here: which changes are made (`changes`), which tests matter for a file (`matters`), one
mutant's trial in a copy of the tree (`trials`), what changes nothing that anybody can observe
(`equivalents`). Nothing here writes into the working tree, and no product code imports it.
`docs/testing.md` says how to read a report.
"""
