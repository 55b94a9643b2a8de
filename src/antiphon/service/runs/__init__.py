"""Responses while they run: direct, detached and background runs, and the ways to follow them."""
