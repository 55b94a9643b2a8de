"""The Harmony tokens of gpt-oss models to deltas."""
