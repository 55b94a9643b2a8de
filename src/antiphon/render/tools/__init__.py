"""Tools in prompts: declarations, tool choice, earlier calls and their results."""
