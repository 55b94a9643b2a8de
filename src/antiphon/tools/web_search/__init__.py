"""The web_search tool: a model searches the web, opens pages and finds text in them; its answer cites them."""
