"""Ranks in parallel: processes here, or Dask's where the files lie; they hold the Traces."""
