"""Incremental JSON: repair, strings and single properties of JSON that arrives in pieces."""
