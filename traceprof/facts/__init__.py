"""Facts: what is computed once of a recording, and shared by all analyses and all windows.

Functions of a Trace (one rank), or of the Ranks where these are compared. `traceprof.facts.cache`
keeps what they return with the recording.
"""
