"""What connects us to one bwrap and to the shell inside, besides its output."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack

from longrein.sandboxes.words import require_words

# Standard input is a socket to us until the command takes over; $0 is what the command gets instead. The shell waits,
# since only from inside can be told what the command left running: it names that to us, and ends. When a command dies
# by a signal, shells say so on standard error, which is the command's own: hence the closed one.
_PRELUDE = """
echo >&0; read -r go || exit 125
exec 4>&2 2>/dev/null
(exec "$@") <"$0" 2>&4 4>&-
code=$?
set -- /proc/[0-9]*
[ $# -le 2 ] || sleep 0.05 || sleep 1
for process in /proc/[0-9]*; do
    case $process in
        /proc/1 | /proc/$$) ;;
        *) read -r name <"$process/comm" && echo "$name" >&0 ;;
    esac
done
exit $code
"""
_MOST_SAID_BYTES = 1 << 14


class Channels:
    """Pipes, memory files and a socket. Ours are closed by :meth:`close`, bwrap's by :meth:`close_inherited`."""

    def __init__(self, options: list[str], stdin: bytes, seccomp: bytes) -> None:
        """Raises ``OSError`` where there are no more descriptors, or there is no memory; then none is left open."""
        require_words(options)
        with ExitStack() as opened:
            self.status, self._status_end = _pipe(opened)
            self._block_end, self._block = _pipe(opened)
            self.talk, self.talk_end = (opened.enter_context(end) for end in socket.socketpair())
            self.talk.setblocking(False)
            # Options travel in a file, not in argv: the environment in them holds the session's key.
            words = b"".join(os.fsencode(option) + b"\0" for option in options)
            self._options = _memory_file(opened, "options", words)
            os.lseek(self._options, 0, os.SEEK_SET)
            self._stdin = _memory_file(opened, "stdin", stdin) if stdin else None
            self._seccomp = _memory_file(opened, "seccomp", seccomp) if seccomp else None
            if self._seccomp is not None:
                os.lseek(self._seccomp, 0, os.SEEK_SET)
            opened.pop_all()

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that bwrap takes along."""
        optional = tuple(handle for handle in (self._stdin, self._seccomp) if handle is not None)
        return (self._status_end, self._block_end, self._options, *optional)

    @property
    def options(self) -> tuple[str, ...]:
        """Options of bwrap that name them."""
        return (
            *("--json-status-fd", str(self._status_end)),
            *("--block-fd", str(self._block_end)),
            *(("--seccomp", str(self._seccomp)) if self._seccomp is not None else ()),
            *("--args", str(self._options)),
        )

    @property
    def prelude(self) -> tuple[str, ...]:
        """What stands before the command: the shell that talks to us."""
        stdin = "/dev/null" if self._stdin is None else f"/proc/self/fd/{self._stdin}"
        return ("/bin/sh", "-c", _PRELUDE, stdin)

    def close_inherited(self) -> None:
        """After the start: they are bwrap's now."""
        for handle in self.inherited:
            os.close(handle)
        self.talk_end.close()

    def unblock(self) -> None:
        """Let bwrap go on."""
        os.write(self._block, b"x")

    async def run(self) -> None:
        """Wait for the shell inside, and let it run the command."""
        loop = asyncio.get_running_loop()
        if not await loop.sock_recv(self.talk, 1):
            raise ConnectionError("it ended before its command")
        await loop.sock_sendall(self.talk, b"go\n")

    def left_running(self) -> tuple[str, ...]:
        """Names of the processes that the command left; call it when all of them are dead."""
        said = b""
        while len(said) < _MOST_SAID_BYTES:
            try:
                part = self.talk.recv(_MOST_SAID_BYTES)
            except OSError:
                break
            if not part:
                break
            said += part
        return tuple(said.decode(errors="replace").split("\n")[:-1])

    def close(self) -> None:
        """Ours."""
        os.close(self._block)
        self._block = -1
        self.talk.close()


def _pipe(opened: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _memory_file(opened: ExitStack, name: str, data: bytes) -> int:
    handle = os.memfd_create(name)
    opened.callback(os.close, handle)
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    return handle
