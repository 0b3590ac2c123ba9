"""Read and write folders of Parquet or Arrow files: the tables of a Trace."""
