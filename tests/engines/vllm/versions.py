"""Policy versions for all tests that share a server: they only grow."""

from __future__ import annotations

from itertools import count

VERSIONS = count(1)
