"""Draw a Trace as one interactive HTML page."""
