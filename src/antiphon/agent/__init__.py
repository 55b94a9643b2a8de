"""One response from its first model call to its terminal event: runs, turns, tool calls and retries."""
