"""Folders of Parquet or Arrow files: the tables of a Trace as they are."""
