"""Writing the files of a recording: one SQLite file, or a folder with one per rank."""
