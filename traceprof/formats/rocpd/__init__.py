"""Read databases of rocprofv3 and rocprof-sys (rocpd)."""
