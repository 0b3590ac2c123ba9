"""The live viewer: the timeline of traces of any size, and the tables of a chosen window."""
