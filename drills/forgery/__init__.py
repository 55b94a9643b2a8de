"""Drills on forged control tokens, for every model family."""
