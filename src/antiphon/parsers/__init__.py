"""Model output to deltas: pure parsers that accept the output in pieces and run in linear time."""
