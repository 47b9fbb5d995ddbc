"""Meshes and shardings, several processes, preemption."""
