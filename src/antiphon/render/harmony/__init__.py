"""Renders chat messages as Harmony tokens for gpt-oss models."""
