"""HTTP and WebSocket: bytes in, bytes out, errors as bodies."""
