"""Parse names: kernels, collectives with their sizes, and ranges."""
