"""Results in a terminal: they read well in 80 columns, with or without colour."""
