"""The site of the documentation: `make docs`.

    docs/ and pages of other places ──stage──▶ build/site-pages ──generator──▶ build/site
    code ───────────────────────reference──┘

`pages` says which file becomes which page, `links` leads their links there, `reference` and
`command_reference` write the pages that describe code. The generator is replaceable: it reads
`mkdocs.yml` and Markdown, and needs no plugin of ours. Nothing here is part of the product.
"""
