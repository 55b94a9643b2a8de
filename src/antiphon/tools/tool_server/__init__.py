"""Tool servers: MCP servers of the operator that run built-in tools instead of this server, as gpt-oss knows them."""
