"""Code that `traceprof record` runs inside the recorded program: hooks, emitters, the spool.

It is self-contained: it needs Python 3.8, and it imports torch only after the program has.
"""
