"""Find the critical path of a window, and upper bounds of what changes could gain."""
