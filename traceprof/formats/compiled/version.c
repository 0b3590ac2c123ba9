/* Of the functions that are called from outside: it counts up when their arguments change. */
__attribute__((visibility("default"))) const int traceprof_version = 2;
