"""Devices, processes and hosts."""
