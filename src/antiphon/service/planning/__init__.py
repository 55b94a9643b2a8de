"""Validation and planning: everything about a request that is decided before it runs."""
