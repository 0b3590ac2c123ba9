"""The critical path: what decided how long a window took."""
