"""A started engine process, and everything that must go when it goes: socket folder, log, file descriptors."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from longrein.engines.local import wire
from longrein.engines.local.boot import Boot
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.manifest import anonymous_file
from longrein.errors import EngineError, EngineGoneError

_LOG_TAIL_CHARACTERS = 2000
_LONGEST_SOCKET_PATH = 100
_DECODER: msgspec.msgpack.Decoder[wire.ToOwner] = msgspec.msgpack.Decoder(wire.ToOwner)


class EngineChild:
    """Starts the process at once.

    It is a fresh interpreter, not a ``multiprocessing`` child: it never imports the user's ``__main__``, so a
    script without a main guard works, and thread counts are in its environment before torch is imported.
    """

    def __init__(self, config: LocalEngineConfig) -> None:
        self._config = config
        self._folder = _private_folder()
        self.socket_path = str(self._folder / "engine.sock")
        self._log_path = self._folder / "engine.log"
        self._owner, inherited = socket.socketpair(socket.AF_UNIX)
        self.weights_fd = anonymous_file()
        boot = Boot(
            config=config,
            socket_path=self.socket_path,
            owner_fd=inherited.fileno(),
            weights_fd=self.weights_fd,
            parent_pid=os.getpid(),
        )
        with self._log_path.open("wb") as log, inherited:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "longrein.engines.local.serve", msgspec.json.encode(boot).decode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(config),
                pass_fds=(boot.owner_fd, boot.weights_fd),
            )

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def tell(self, frame: object) -> None:
        """Send a frame. Raises :class:`EngineGoneError` when the process is gone."""
        try:
            self._owner.sendall(wire.pack(frame))
        except OSError as error:
            raise EngineGoneError(self._describe_death()) from error

    def hear(self, timeout_s: float) -> wire.ToOwner:
        """Wait for a frame.

        Raises:
            EngineGoneError: the process died (with the end of its log), or was stopped.
            EngineError: it said nothing for too long.
        """
        self._owner.settimeout(timeout_s)
        try:
            return wire.receive(self._owner, _DECODER)
        except TimeoutError as error:
            raise EngineError(f"the engine for {self._config.model} did not answer within {timeout_s:g} s") from error
        except (OSError, EOFError) as error:
            raise EngineGoneError(self._describe_death()) from error

    def close(self) -> None:
        """Kill the process and leave nothing behind. It has no state of its own that could be lost. Idempotent."""
        self._process.kill()
        self._process.wait()
        if self.weights_fd >= 0:
            os.close(self.weights_fd)
            self.weights_fd = -1
        self._owner.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _describe_death(self) -> str:
        if not self._folder.exists():
            return f"the engine for {self._config.model} was stopped"
        code = self._process.wait()
        log = self._log_path.read_text(errors="replace").strip()
        return (
            f"the engine process for {self._config.model} died with exit code {code}; "
            f"the end of its log:\n{log[-_LOG_TAIL_CHARACTERS:] or '(empty)'}"
        )


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="longrein-engine-"))
    if len(str(folder)) > _LONGEST_SOCKET_PATH - len("/engine.sock"):
        # A socket's path has about 100 bytes; TMPDIR may be anything.
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="longrein-engine-", dir="/tmp"))
    return folder


def _environment(config: LocalEngineConfig) -> dict[str, str]:
    threads = str(config.threads)
    return {
        # libgomp's threads spin while they wait for each other, by default for milliseconds.
        # Where another process wants a core, that takes a multiple of the time until a thread is given up (cores.py).
        "GOMP_SPINCOUNT": "3000",
        # torch asks for large pages: reading 100 MB of keys and values a step meets fewer misses.
        "THP_MEM_ALLOC_ENABLE": "1",
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
