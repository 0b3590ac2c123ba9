"""The host: phases, layers, names, and what it was doing."""
