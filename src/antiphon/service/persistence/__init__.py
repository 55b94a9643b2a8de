"""Persistence of responses: rows, live log, history and retention."""
