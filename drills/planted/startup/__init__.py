"""The folder that a planted run puts in front of Python's module search path."""
