"""Work directories: their kind of work, one process at a time, files that stay complete when a process is killed."""
