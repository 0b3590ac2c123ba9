"""traceprof: where did the step time of a training run go, and what would fix it?"""

__version__ = "0.1.0"
