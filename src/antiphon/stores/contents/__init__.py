"""Content stores, which hold the bytes of files."""
