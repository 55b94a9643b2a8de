"""Drills on engines: hostile upstreams, engines that are killed, and output that only quotes."""
