"""Training one network: the loop, its metrics, agreement between processes."""
