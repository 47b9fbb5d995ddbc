"""From a config to compiled training: experiment, step, calls, batches on devices, programs."""
