"""Integrations with other libraries: torch.profiler, notebooks, and Trainer callbacks.

Each module needs the library in its name. No other module of traceprof imports them.
"""
