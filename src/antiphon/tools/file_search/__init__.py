"""The file_search tool: a model searches vector stores and cites the files that it found."""
