"""Nsight Systems: SQLite exports, reports, and our own recordings in their shape."""
