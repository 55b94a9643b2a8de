"""Drills on engines: hostile upstreams, killed engines, and model output that quotes control markers."""
