"""JSON that arrives in pieces: repair, strings and single properties."""
