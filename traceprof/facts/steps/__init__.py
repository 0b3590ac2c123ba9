"""Training steps: where they begin and end, what they consist of, how steady they are."""
