"""`antiphon bench`: measures the latency and throughput of any OpenAI-compatible server from the client side."""
