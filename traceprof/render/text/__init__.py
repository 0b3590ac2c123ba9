"""Format results for a terminal of 80 columns or more, with or without color."""
