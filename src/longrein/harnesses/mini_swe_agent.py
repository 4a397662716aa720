"""mini-swe-agent, from its Python package, over chat completions. Source of the recipe: agents.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from longrein.harnesses.installed import installed
from longrein.harnesses.program import python_program
from longrein.types import Endpoint, Launch, Task

VERSION = "2.4.6"
_ENTRY = "mini-swe-agent/bin/mini"
_FOLDER = ".mini-swe-agent"

Mode = Literal["tool", "text"]
_NAME: dict[Mode, str] = {"tool": "mini_swe_agent", "text": "mini_swe_agent_text"}
_BUILT_IN: dict[Mode, str] = {"tool": "mini.yaml", "text": "mini_textbased.yaml"}
_MODEL_CLASS: dict[Mode, str] = {"tool": "litellm", "text": "litellm_textbased"}


class MiniSweAgent:
    """Runs ``mini`` once on a task, without questions, costs and retries of its own.

    Args:
        binary: path of ``bin/mini`` in a virtual environment; by default where ``make agents`` puts it.
        mode: ``tool`` gives the model a bash tool; ``text`` has it write one fenced command an answer.
    """

    def __init__(self, binary: str = "", mode: Mode = "tool") -> None:
        self._program = python_program(Path(binary).absolute() if binary else installed(_ENTRY))
        self._mode: Mode = mode

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return _NAME[self._mode]

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the package is not there."""
        self._program.check(f"mini-swe-agent {VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt is in a settings file, where it has no limit of length."""
        model = {
            "model_class": _MODEL_CLASS[self._mode],
            "model_name": f"openai/{endpoint.model}",
            "cost_tracking": "ignore_errors",
            "model_kwargs": {"api_base": f"{endpoint.base_url}/v1", "max_retries": 0, "timeout": 3600},
        }
        settings = f"run: {{task: {_quoted(task.prompt)}}}\nagent: {{cost_limit: 0}}\nmodel: {json.dumps(model)}\n"
        configs = ("-c", _BUILT_IN[self._mode], "-c", f"$HOME/{_FOLDER}/run.yaml")
        return Launch(
            argv=(
                *self._program.argv,
                "--yolo",
                "--exit-immediately",
                *configs,
                "-o",
                f"$HOME/{_FOLDER}/run.traj.json",
            ),
            env={
                "OPENAI_API_KEY": endpoint.api_key,
                "MSWEA_CONFIGURED": "true",
                "MSWEA_GLOBAL_CONFIG_DIR": f"$HOME/{_FOLDER}",
                "MSWEA_SILENT_STARTUP": "1",
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            files={f"{_FOLDER}/run.yaml": settings.encode()},
            readonly_mounts=self._program.mounts,
        )


def _quoted(text: str) -> str:
    """As YAML. JSON would do but for what lies beyond 16 bits: YAML knows no pairs of surrogates."""
    plain = (one if one.isascii() and one.isprintable() and one not in '"\\' else f"\\U{ord(one):08x}" for one in text)
    return f'"{"".join(plain)}"'
