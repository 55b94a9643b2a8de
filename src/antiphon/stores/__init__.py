"""Stores: responses, conversations and keys in SQLite, PostgreSQL or memory."""
