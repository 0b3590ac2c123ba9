"""Changes that are tried in a program: made, and measured against the program as it is."""
