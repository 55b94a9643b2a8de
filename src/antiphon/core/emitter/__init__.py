"""Deltas to events: the emitter, the items it has open, its event log, and the fold of events into a Response."""
