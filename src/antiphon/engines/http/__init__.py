"""Engine servers that are reached over HTTP.

`base.py` is shared by all of them, `adapters/` has one module per server with its endpoints and probes, `readers/`
turns response bodies into chunks, and `fields.py` is the table of request field names per server, or why a server lacks
a field.
"""
