"""Many devices and many processes: meshes and shardings, process start-up, preemption."""
