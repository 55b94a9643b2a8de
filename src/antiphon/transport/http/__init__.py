"""Requests, replies and errors, independent of the server that they are used with."""
