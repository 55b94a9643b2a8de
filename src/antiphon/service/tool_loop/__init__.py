"""Responses with more than one model call: tools, approvals, awaited tool outputs and compaction."""
