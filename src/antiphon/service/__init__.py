"""Transport-independent API: every endpoint as a plain async method."""
