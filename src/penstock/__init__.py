"""Penstock: a streaming cluster for Kubernetes, Python and Spark.

This distribution without extras is the client: `penstock.client` and `penstock.errors`.
"""

__version__ = "0.1.0.dev0"
