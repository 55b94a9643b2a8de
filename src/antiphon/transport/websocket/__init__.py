"""The WebSocket mode of the Responses API: connections, lanes and steering."""
