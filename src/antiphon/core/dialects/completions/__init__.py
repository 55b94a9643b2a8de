"""Completions: request to prompts, deltas to chunks, chunks to the JSON body."""
