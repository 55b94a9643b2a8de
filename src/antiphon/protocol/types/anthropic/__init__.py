"""The wire types of Anthropic's messages API."""
