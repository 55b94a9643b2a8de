"""`antiphon doctor`: looks at all that a server would need, changes nothing, and says what mends what is wrong."""
