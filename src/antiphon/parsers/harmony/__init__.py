"""Parses the Harmony tokens of gpt-oss models into deltas."""
