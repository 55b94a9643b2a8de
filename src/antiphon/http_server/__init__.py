"""An ASGI 3 server for HTTP/1.1 and WebSockets, with limits on size and time. It knows nothing of the application."""
