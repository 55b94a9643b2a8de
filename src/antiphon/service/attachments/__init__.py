"""Images and files of a request: fetched, vetted and converted to data or text."""
