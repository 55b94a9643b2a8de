"""Responses while they run: direct, detached and background runs, and the sources that follow them."""
