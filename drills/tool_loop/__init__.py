"""Drills on the tool loop: effects that occur at most once, hostile MCP servers, and their credentials."""
