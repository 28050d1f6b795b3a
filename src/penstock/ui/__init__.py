"""The console: a small web page that shows a cluster and changes nothing.

What belongs here: asking the client (`reader`, `records`), who may look (`gate`, pure), pages and
their server. What never may: a route that changes anything, knowledge of Kubernetes, HTML made of
strings, scripts or styles inside of pages. What is shown is decided in `penstock.views`.

    browser ──▶ gate ──▶ pages ──▶ reader, records ──▶ client
                           └──▶ views ──▶ rendering: templates

`reader` needs the client alone: `penstock top` asks through it, too.
"""
