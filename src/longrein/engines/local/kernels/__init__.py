"""Loops that numba compiles: what torch has no one operator for on a CPU."""
