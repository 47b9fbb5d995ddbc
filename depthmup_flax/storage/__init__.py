"""Files of runs and sweeps: work directories and records."""
