"""The public API of ``import traceprof``: read traces, and record from inside a program.

Each name is loaded from its module on first use, so a program that only records does not load the
code that reads traces. `traceprof` lists the module of each name.
"""
