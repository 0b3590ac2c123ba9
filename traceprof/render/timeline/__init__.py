"""The timeline: a Trace as one interactive page."""
