"""Endpoints about the server itself: its health, activity, keys and page."""
