"""Training steps: their boundaries, their parts, and the time between them."""
