"""The snippets of the documentation: what a page shows between fences, and how each is tested.

    page ──read──▶ snippets, classified ──check──▶ one line per mistake
                        └─▶ run by tests/documents, by e2e, or by a test that a comment names

`page` reads, `check` looks at the form of all: commands (`commands`, `shell`), programs
(`programs`), values (`values`). `output` compares what a page shows with what came. Nothing here
starts a process or asks a cluster: those who run snippets are tests, and may be of any kind.
"""
