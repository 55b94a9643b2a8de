"""The HTTP/1.1 and WebSocket protocols of our own server, and the bridge to any ASGI server."""
