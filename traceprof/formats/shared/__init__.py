"""Code shared by several formats: CUPTI codes, collectives, launchers, gzip and JSON files, secrets."""
