"""What people are shown of a cluster: the same rows and sentences in the browser and the terminal.

What belongs here: pure functions from the client's answers to findings (what is wrong, what to do)
and tables of cells. What never may: I/O, a clock, HTML, escape codes, anything of Kubernetes.

    client's answers ──▶ views ──▶ penstock.ui (pages), `penstock top`, `kubectl penstock why`

A cell has the value for programs and the text for people; what is not known is shown as "–" and
never as 0.
"""
