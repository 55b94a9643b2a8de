"""Skills: folders with instructions and programs, which are stored in versions and put into containers."""
