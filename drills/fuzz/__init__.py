"""Drill with almost valid requests: mutations of recorded client requests, and requests generated from
`/openapi.json`.
"""
