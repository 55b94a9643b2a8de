"""Events to bytes: server-sent events, keep-alives and delivery to the client."""
