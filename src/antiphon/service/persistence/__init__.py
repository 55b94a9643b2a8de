"""What is written for a response and read back: rows, live log, history and retention."""
