"""What belongs to this operating-system process: start-up with others, preemption, cores, compiled programs."""
