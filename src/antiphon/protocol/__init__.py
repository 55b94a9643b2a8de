"""The wire format: message types, decoding of request bodies, and checks of JSON schemas and grammars."""
