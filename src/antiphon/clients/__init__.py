"""How programs that use a server are configured: one description of each, for `antiphon connect` and for the page."""
