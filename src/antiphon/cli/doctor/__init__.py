"""`antiphon doctor`: checks everything that a server needs without changing anything, and suggests remedies."""
