"""`antiphon bench`: how fast a server answers, whoever made it, seen from a client."""
