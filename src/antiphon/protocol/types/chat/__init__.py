"""Wire types of the chat completions API."""
