"""Event streams: encoding as server-sent events, keep-alives and delivery to the client."""
