"""Anthropic's messages API: request to CreateResponse, deltas to its events, events to the JSON body."""
