"""The wire types of chat completions."""
