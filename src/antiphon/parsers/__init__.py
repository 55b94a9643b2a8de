"""Parsers of model output: pure, incremental, linear in time; they produce deltas."""
