"""Readers that turn response bodies of HTTP engines into chunks."""
