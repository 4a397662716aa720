"""Weights by NCCL to a real vLLM server on another GPU: are they the trainer's, also for what is in flight?

Started by ``vllm_gpu.sh``. Prints one JSON line: the logprob gaps, and seconds an update.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import EngineRequest
from longrein.engines.vllm.process import ServerProcess
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.train.vllm.choose import SyncSettings, vllm_receiver
from longrein.train.vllm.tied import tied_names
from longrein.train.weights import named_weights
from longrein.types import Completion, Sampling

CONTEXT = 2048
PROMPT = np.arange(100, 164, dtype=np.int32)
UPDATES = 4


def main() -> int:
    options = arguments()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    command = [options.python, "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--port", "{port}"]
    command += ["--max-model-len", str(CONTEXT), "--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    command += ["--weight-transfer-config", '{"backend": "nccl"}', *options.extra]
    others = ",".join(str(number) for number in range(1, 1 + options.server_gpus))
    env = {"VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": others}
    log = Path(tempfile.gettempdir()) / "vllm_gpu.log"
    with ServerProcess(command, env=env, url=url, model=options.model, log=log) as server:
        server.start(900.0)
        result = asyncio.run(measure(options.model, url))
    print(json.dumps(result))
    return int(max(result["logprob_gaps"]) > options.gap)


async def measure(folder: str, url: str) -> dict[str, list[float]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda")
    receiver = vllm_receiver(SyncSettings(urls=(url,), weight_sync="nccl"), tied_names(model))
    engine = await VllmEngineSpec(urls=(url,), model=folder, context_length=CONTEXT).connect()
    gaps: list[float] = []
    seconds: list[float] = []
    for version in range(UPDATES):
        in_flight = asyncio.create_task(engine.generate(request(1500, version)))
        await asyncio.sleep(0.5)
        started_s = time.perf_counter()
        await asyncio.to_thread(receiver.update, named_weights(model), version)
        seconds.append(time.perf_counter() - started_s)
        gaps.append(gap(model, await engine.generate(request(128, version))))
        await in_flight
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.01 * torch.randn_like(parameter))
    await engine.close()
    receiver.close()
    return {"logprob_gaps": gaps, "update_s": seconds}


def request(max_tokens: int, seed: int) -> EngineRequest:
    sampling = Sampling(max_tokens=max_tokens, seed=seed)
    return EngineRequest(request_id=f"{seed}", conversation_id=f"{seed}", prompt_ids=PROMPT, sampling=sampling)


def gap(model: torch.nn.Module, completion: Completion) -> float:
    ids = torch.from_numpy(np.concatenate([PROMPT, completion.token_ids])[None].astype(np.int64)).to("cuda")
    with torch.no_grad():
        logprobs = model(ids).logits[0, PROMPT.size - 1 : -1].float().log_softmax(-1)
    ours = logprobs.gather(1, ids[0, PROMPT.size :, None])[:, 0].cpu().numpy()
    return float(np.abs(ours - completion.logprobs).max())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--python", required=True, help="of an environment with vLLM 0.32")
    parser.add_argument("--gap", type=float, default=0.1)
    parser.add_argument("--server-gpus", type=int, default=int(os.environ.get("SERVER_GPUS", "1")))
    parser.add_argument("extra", nargs="*", help="further flags of the server, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
