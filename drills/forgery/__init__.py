"""Drill on forged control tokens of all model families."""
