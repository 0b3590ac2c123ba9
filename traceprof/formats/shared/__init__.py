"""Code shared by several formats: CUPTI codes, collectives, launchers, files, secrets."""
