"""The HTTP/1.1 and WebSocket protocols of our own server, and the adapter for any ASGI server."""
