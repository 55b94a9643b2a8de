"""Other APIs as dialects of the same deltas: chat completions, completions and Anthropic's messages."""
