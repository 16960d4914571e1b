"""The public suite for HTTP caches, and a list of our own, run against each transport behind a gateway.

``python -m tests.conformance --client httpx`` runs both and compares them with the tables in ``expected/``.
"""
