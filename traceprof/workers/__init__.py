"""Run analyses of ranks in parallel: local processes or Dask workers hold the Traces."""
