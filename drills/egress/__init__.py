"""Drills on outgoing connections: every spelling of an address, in every field for a URL."""
