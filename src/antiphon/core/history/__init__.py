"""Earlier responses and the input as one list of items, and the compaction of a long list."""
