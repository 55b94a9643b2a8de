"""Drills under load: overload, a noisy tenant, and thousands of WebSockets."""
