"""HTTP and WebSocket: requests in, replies and event streams out, errors as response bodies."""
