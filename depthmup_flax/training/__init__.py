"""Training one network: configuration, step, loop, checkpoints and the files of a run."""
