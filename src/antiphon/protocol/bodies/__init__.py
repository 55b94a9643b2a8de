"""Smaller request bodies, each with its types and its decoder."""
