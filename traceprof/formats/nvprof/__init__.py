"""Read SQLite files of nvprof and the Visual Profiler."""
