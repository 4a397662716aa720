"""White-box GRPO on the environment that OpenEnv's own wheel brings: it echoes, and rewards long messages.

    pip install 'longrein[train]' openenv==0.10.0
    python examples/openenv_echo.py --model models/smollm2 --steps 5

Makes the environment with `openenv init`, starts its server, and trains: every turn is sampled by us, the tool `say` is
a step of the environment, and a model that only talks has its last words said for it.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openenv.core.env_server.mcp_types import Tool
from openenv.core.generic_client import GenericEnvClient
from openenv.core.harness import ResourceSessionFactory, StepEnvSessionAdapter, VerifyResult

from longrein import AsyncGRPOConfig, AsyncGRPOTrainer, HarnessRolloutWorker
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.rollout.tool_loop import ToolLoop

NAME = "echo_demo"
SESSIONS = 8
SAY = Tool(
    name="say",
    description="Say something to the environment",
    input_schema={"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
)


class EchoFactory(ResourceSessionFactory[StepEnvSessionAdapter]):
    """One connection to the server a session. It travels to the worker's process, so it is plain."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> StepEnvSessionAdapter:
        """Reset an environment; ``task`` is the dataset's row."""
        client = GenericEnvClient(base_url=self.url).sync()

        def judge(transcript: list[dict[str, Any]], _state: Any, last: Any, _data: Any) -> VerifyResult:
            result = last or client.step({"message": transcript[-1]["content"] or ""})
            return VerifyResult(env_reward=result.reward, done=True)

        return StepEnvSessionAdapter(
            client,
            task=task,
            seed=seed,
            episode_id=episode_id,
            tool_specs=[SAY],
            action_builder=lambda _name, arguments: {"message": str(arguments["message"])},
            initial_messages_builder=lambda _result, row: [{"role": "user", "content": row["prompt"]}],
            verify_builder=judge,
        )


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[str]:
    """The address of the environment's own server, which ends with the block."""
    app = folder / NAME / "server" / "app.py"
    if not app.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "openenv.cli", "init", NAME, "--output-dir", str(folder)], check=True)
        # One session at a time is the default; the file itself says to increase it here.
        app.write_text(app.read_text().replace("max_concurrent_envs=1", f"max_concurrent_envs={SESSIONS}"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["-m", "uvicorn", f"{NAME}.server.app:app", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen([sys.executable, *command], cwd=folder)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        # At once: it would wait for its connections.
        server.kill()
        server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return once it answers."""
    while server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit(f"the environment's server ended with exit code {server.poll()}; see its output above")


def train(url: str, arguments: argparse.Namespace) -> None:
    """A few steps."""
    rows = [{"prompt": f"Say something nice, number {number}."} for number in range(8)]
    output: Path = arguments.output
    with LocalEngineProcess(LocalEngineConfig(model=arguments.model, context_length=1024)) as engine:
        worker = HarnessRolloutWorker(
            harness_session_factory=EchoFactory(url),
            harness_adapter=ToolLoop(),
            model_name=arguments.model,
            dataset=rows,
            engine=engine.spec,
            output_dir=str(output),
            num_generations=4,
            max_inflight_tasks=SESSIONS,
            max_tokens=arguments.max_tokens,
            max_calls=3,
            context_length=1024,
        )
        config = AsyncGRPOConfig(
            output_dir=str(output / "checkpoints"),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=arguments.max_tokens,
            max_steps=arguments.steps,
            learning_rate=1e-5,
            save_strategy="no",
            use_cpu=True,
        )
        trainer = AsyncGRPOTrainer(
            model=arguments.model,
            args=config,
            train_dataset=rows,
            rollout_worker=worker,
            weight_receiver=engine.weights,
        )
        trainer.train()
        trainer.save_model(str(output / "model"))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2")
    parser.add_argument("--output", type=Path, default=Path("runs/openenv-echo"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=8)
    arguments = parser.parse_args()
    with environment(arguments.output / "environment") as url:
        train(url, arguments)


if __name__ == "__main__":
    main()
