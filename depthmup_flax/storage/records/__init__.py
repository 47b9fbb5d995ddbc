"""Records of results: the table that a sweep writes and a report reads, the hash of a run, its provenance."""
