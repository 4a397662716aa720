"""Servers that we start ourselves, and start again when they die."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.urls import port_of
from longrein.errors import ConfigError, EngineError, EngineUnreachableError
from longrein.redaction import Secrets, shown_command

MAX_EARLY_DEATHS = 2
"""A server that dies this often in a row before it is well is not started again."""
_LEASH = str(Path(__file__).with_name("leash.py"))
_LOOK_EVERY_S = 0.5
_LOG_TAIL_CHARACTERS = 2000


class ServerProcess:
    """One server, kept alive by a thread. Also a context manager: entering starts it, leaving stops it.

    Args:
        command: argv; ``{model}`` and ``{port}`` are filled in.
        env: added to our environment.
        url: where it will listen, on this machine.
        model: for ``{model}``.
        log: a file that its output is added to.

    Raises:
        ConfigError: no command.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], url: str, model: str, log: Path) -> None:
        if not command:
            raise ConfigError("no command to start a vLLM server with")
        filled = {"{model}": model, "{port}": str(port_of(url))}
        self._command = [_filled(word, filled) for word in command]
        self._env = {**os.environ, **env}
        self._url = url
        self._log = log
        self._control = ServerControl(url, ControlTimeouts())
        self._stopping = threading.Event()
        self._well = threading.Event()
        self._given_up = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"longrein-vllm-{port_of(url)}", daemon=True)
        self.starts = 0
        """How often it was started."""

    def start(self, timeout_s: float) -> None:
        """Start it and wait until it is well.

        Raises:
            EngineError: the port is taken, its log cannot be written, it died, or it is not well in time; with the end
                of its log.
        """
        self._refuse_taken_port()
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._log.open("ab").close()
        except OSError as error:
            raise EngineError(f"the vLLM server's log {self._log} cannot be written: {error}") from error
        self._keeper.start()
        deadline_s = time.monotonic() + timeout_s
        while not self._well.wait(_LOOK_EVERY_S):
            if self._given_up.is_set() or time.monotonic() > deadline_s:
                self.stop()
                why = "died" if self._given_up.is_set() else f"was not well within {timeout_s:g} s"
                raise EngineError(
                    f"the vLLM server {shown_command(self._command)} {why}; the end of its log, {self._log}:\n"
                    f"{self.log_tail()}"
                )

    def stop(self) -> None:
        """Kill it with all that it started. Idempotent."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        self._control.close()

    def log_tail(self) -> str:
        """The end of what it printed, without the secrets that it was given: vLLM prints its arguments."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        # Before it is cut, or half a secret would be left.
        return Secrets(self._command, self._env).hide(text).strip()[-_LOG_TAIL_CHARACTERS:] or "(empty)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _keep(self) -> None:
        early_deaths = 0
        try:
            while not self._stopping.is_set() and early_deaths < MAX_EARLY_DEATHS:
                early_deaths = 0 if self._run_once() else early_deaths + 1
        finally:
            self._given_up.set()

    def _run_once(self) -> bool:
        """Start it and wait for its end, or for ours; returns whether it was ever well."""
        self.starts += 1
        was_well = False
        with self._log.open("ab") as log:
            leash = subprocess.Popen(
                [sys.executable, "-I", _LEASH, *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._env,
            )
            try:
                while leash.poll() is None and not self._stopping.wait(_LOOK_EVERY_S):
                    if not was_well and self._is_well():
                        was_well = True
                        self._well.set()
            finally:
                # The leash kills the group when its stdin ends; if it was killed itself, its guard does.
                leash.communicate()
        return was_well

    def _is_well(self) -> bool:
        try:
            self._control.healthy()
        except EngineUnreachableError:
            return False
        return True

    def _refuse_taken_port(self) -> None:
        if self._is_well():
            raise EngineError(
                f"a server answers at {self._url} already; stop it, give another port, or leave out the command to "
                "use it"
            )


def _filled(word: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word
