"""Vector stores: their files, which are chunked and embedded in the background, and searches in them."""
