"""Types of endpoints for operators and for a page about the server. Extensions."""
