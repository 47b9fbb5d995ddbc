"""Meshes, shardings, fingerprints of arrays."""
