"""Requests, replies and errors, independent of the server that carries them."""
