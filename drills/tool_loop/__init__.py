"""Drills on the tool loop: effects that happen once, hostile MCP servers and their credentials."""
