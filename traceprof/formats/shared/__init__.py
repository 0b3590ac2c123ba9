"""What several formats have in common: codes of CUPTI, collectives, launchers, packed files."""
