"""Training steps: where they begin and end, what they consist of, what lies between them."""
