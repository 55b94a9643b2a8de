"""What the path costs, against a bare ASGI app that sends the same bytes: `python -m bench`."""
