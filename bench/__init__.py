"""Benchmarks of the server: `python -m bench` beside a bare server, `python -m bench.peers` beside other gateways."""
