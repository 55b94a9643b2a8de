"""MCP servers as tools: sessions, tool lists, calls and results."""
