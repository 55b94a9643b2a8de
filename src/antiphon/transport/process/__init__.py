"""The server process: sockets, signals, shutdown and worker processes."""
