"""The use cases: open files, place ranks on one clock, select a window, analyze, and answer."""
