"""The same events again, from the packed log of a response that has ended."""
