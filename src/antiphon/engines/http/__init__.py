"""Engine servers that are reached over HTTP.

`base.py` is shared by all of them, `adapters/` has one module per server with its endpoints, its probes and its request
fields as far as they differ from `fields.py`, and `readers/` turns response bodies into chunks.
"""
