"""Wire types of Anthropic's Messages API."""
