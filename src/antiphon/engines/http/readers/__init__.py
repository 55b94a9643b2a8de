"""Response bodies of HTTP engines to chunks."""
