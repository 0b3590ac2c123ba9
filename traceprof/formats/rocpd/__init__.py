"""Databases of rocprofv3 and rocprof-sys (rocpd)."""
