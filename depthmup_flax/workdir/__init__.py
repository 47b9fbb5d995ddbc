"""Work directories: whose they are, one process at a time, and files that stay complete when a process is killed."""
