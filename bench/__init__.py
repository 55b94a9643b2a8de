"""Benchmarks of the server's overhead, compared with a bare ASGI application that sends the same bytes:
`python -m bench`.
"""
