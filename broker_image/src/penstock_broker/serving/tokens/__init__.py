"""Tokens of users: JSON web tokens, checked with keys that lie in a file.

    --token-issuers FILE ─▶ issuers.IssuersFile ─▶ Issuers (whom to believe, with which keys)
    a call, a hello ─▶ login.TokenLogin ─ known? ─▶ Caller
                              └─ not yet ─▶ checking.verified, in a thread ─▶ kept until it ends
    a controller: no API server ─▶ grace.Grace ─▶ known tokens count on

Belongs here: who a token says its holder is, and whether that can be believed. Never here: what the
holder may do, and any network: whoever has keys to publish writes the file.
"""
