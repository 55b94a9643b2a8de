"""Chat completions: request to CreateResponse, deltas to chunks, chunks to the JSON body."""
