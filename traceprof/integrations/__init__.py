"""traceprof inside other libraries: torch.profiler, notebooks, Trainers that call back.

Each module needs the library that it is named for; nothing else of traceprof imports them.
"""
