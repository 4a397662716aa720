"""Certifies a setup before a run is spent: one check a file, each told by what it saw and how to mend it."""
