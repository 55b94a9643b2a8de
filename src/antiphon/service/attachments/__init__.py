"""Images and files of a request: fetched, checked, and converted to data URLs or text."""
