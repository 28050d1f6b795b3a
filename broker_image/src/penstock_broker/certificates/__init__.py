"""Certificates of a cluster: whose they are, and the authority that signs them.

names      who a certificate is about: spiffe://penstock/<cluster id>/broker/<n>
authority  makes a cluster's CA, and signs
"""
