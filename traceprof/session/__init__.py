"""The use cases, once: open → place → select a window → run analyses → an answer."""
