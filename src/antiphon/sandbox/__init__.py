"""Runs untrusted code in containers: the client of the sandbox process, and the process itself."""
