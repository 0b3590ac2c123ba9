"""The critical path: what decided how long a window took, and what at most could be gained."""
