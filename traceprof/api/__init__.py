"""The public API: what ``import traceprof`` gives for reading traces, and for recording inside.

Each name is loaded from its module when it is asked for: a program that records itself does not
load what reads traces. `traceprof` says where which is.
"""
