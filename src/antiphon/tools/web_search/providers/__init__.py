"""What searches the web: one file for each kind of service, and a line in the registry."""
