"""A port for a server that has to be told one."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to whoever asks for any: a connection of another process would have it by the time
# that the server is there.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Nobody has it now, and by chance alone somebody will."""
    # Of processes that run beside each other each begins elsewhere.
    chance = random.SystemRandom()
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
