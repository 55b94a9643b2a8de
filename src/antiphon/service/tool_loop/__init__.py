"""What a response needs beyond one model call: tools, approvals, tool outputs and compaction."""
