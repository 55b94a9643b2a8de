"""Prompt rendering: the only package that turns items into chat messages, template text or Harmony tokens."""
