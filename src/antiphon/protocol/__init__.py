"""The wire format: types, decoding of request bodies, and JSON schemas."""
