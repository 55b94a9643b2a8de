"""web_search: a model searches the web, opens pages and finds words in them, and its answer cites what it read."""
