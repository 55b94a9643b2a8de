"""Chat messages to Harmony tokens for gpt-oss models."""
