"""A real vLLM server on this CPU with a tiny random model, and what tests ask of both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import EngineRequest
from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.process import ServerProcess
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.types import F32, I32, Completion, Sampling
from tests import tiny
from tests.ports import free_port
from tests.waiting import until

PYTHON = os.environ.get("LONGREIN_VLLM_PYTHON", str(Path(__file__).parents[3] / ".vllm" / "bin" / "python"))
"""Of the virtual environment that ``make test-vllm`` makes."""
CONTEXT = 4096
LONG = 1000
SLOW_STEP_S = 0.2
"""At which so many tokens take more than three minutes."""
START_TIMEOUT_S = 240.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_NO_USAGE_STATS": "1",
    # Where the backend of test_transfer.py is; what our own interpreter needs is nothing to vLLM's.
    "PYTHONPATH": str(Path(__file__).with_name("server_side")),
}
WEIGHT_ROUTES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
BARE = (
    *(PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--host", "127.0.0.1"),
    *("--port", "{port}", "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "134217728"),
    *("--max-model-len", str(CONTEXT)),
)
"""A server as somebody might start it who does not know what training needs."""
COMMAND = (
    *BARE,
    *("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
    *("--enable-lora", "--max-lora-rank", "8"),
    *("--worker-extension-cls", "longrein_test_backend.Extension"),
    *("--weight-transfer-config", '{"backend": "longrein_socket"}'),
)
HIDDEN_DEFAULTS = {
    "do_sample": True,
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.1,
    "repetition_penalty": 3.0,
    "max_new_tokens": 2,
}
"""In the model's generation_config.json, where vLLM takes defaults from."""


def save_model(folder: Path, **overrides: Any) -> Path:
    """vLLM's attention on a CPU has no kernel for heads as small as those of the other tests."""
    tiny.save_model(folder, hidden_size=128, intermediate_size=256, max_position_embeddings=CONTEXT, **overrides)
    (folder / "generation_config.json").write_text(json.dumps(HIDDEN_DEFAULTS))
    return folder


def load(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@contextlib.contextmanager
def started(folder: Path, model: Path, command: tuple[str, ...], env: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """A server of its own; its URL and the process that keeps it alive."""
    url = f"http://127.0.0.1:{free_port()}"
    log = folder / "vllm.log"
    with ServerProcess(command, env={**ENVIRONMENT, **env}, url=url, model=str(model), log=log) as process:
        process.start(START_TIMEOUT_S)
        yield url, process


def pid_of(url: str) -> int:
    """Of the process that listens."""
    port = int(url.rpartition(":")[2])
    return next(
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid
    )


def spec(*urls: str, model: Path, **options: Any) -> VllmEngineSpec:
    return VllmEngineSpec(urls=urls, model=str(model), context_length=CONTEXT, **options)


def request(prompt: list[int], *, name: str = "r", **sampling: Any) -> EngineRequest:
    options = {"max_tokens": 24, "seed": 1, **sampling}
    return EngineRequest(
        request_id=name, conversation_id=name, prompt_ids=np.array(prompt, np.int32), sampling=Sampling(**options)
    )


def long_request(prompt: list[int], *, name: str = "r") -> EngineRequest:
    """One that is still under way when an update comes, where the server is :func:`slowed`.

    Without a seed: vLLM 0.32 on a CPU ends over a seeded request that it prefills in pieces, as it may do after an
    update (docs/doctor.md).
    """
    return request(prompt, name=name, max_tokens=LONG, seed=None)


def metric(url: str, name: str) -> int:
    lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")))


@contextlib.contextmanager
def slowed(url: str) -> Iterator[None]:
    """Within, nothing long ends by itself, however fast the machine and however slow the test."""
    with ServerControl(url, ControlTimeouts()) as server:
        server.call("/collective_rpc", {"method": "longrein_pace", "args": [SLOW_STEP_S]})
        try:
            yield
        finally:
            server.call("/collective_rpc", {"method": "longrein_pace", "args": [0.0]})


async def under_way(
    url: str, asked: list[Coroutine[Any, Any, Completion]], tokens: int = 10
) -> list[asyncio.Task[Completion]]:
    """Begin them, and return when the server runs them all and has since sampled so many tokens for each."""
    tasks = [asyncio.create_task(one) for one in asked]
    await until(lambda: metric(url, "vllm:num_requests_running") == len(asked))
    sampled = "vllm:generation_tokens_total"
    wanted = metric(url, sampled) + tokens * len(asked)
    await until(lambda: metric(url, sampled) >= wanted)
    assert not any(task.done() for task in tasks), "the server must be slowed"
    return tasks


def trainers_logprobs(model: torch.nn.Module, prompt: list[int], ids: I32, temperature: float = 1.0) -> F32:
    """Of each sampled token, as the trainer computes it."""
    whole = torch.tensor([[*prompt, *ids.tolist()]])
    with torch.no_grad():
        logits = model(whole).logits[0, len(prompt) - 1 : -1] / temperature
    chosen = logits.log_softmax(-1).gather(1, torch.from_numpy(ids.astype(np.int64))[:, None])
    return chosen[:, 0].numpy()


def gap(model: torch.nn.Module, prompt: list[int], completion: Completion, temperature: float = 1.0) -> float:
    """Largest difference between the trainer's logprobs and the engine's."""
    ours = trainers_logprobs(model, prompt, completion.token_ids, temperature)
    return float(np.abs(ours - completion.logprobs).max())


def shake(model: torch.nn.Module, seed: int) -> None:
    """As an optimizer step might, but more."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
