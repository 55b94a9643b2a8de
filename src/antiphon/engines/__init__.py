"""Engines: anything that generates, embedded or over HTTP."""
