"""Drill on outgoing connections: every spelling of a forbidden address in every field that accepts a URL."""
