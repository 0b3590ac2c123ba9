"""What `traceprof record` runs inside the recorded program: hooks, emitters, the spool.

Self-contained: it needs Python 3.8 and imports torch only where the program has imported it.
"""
