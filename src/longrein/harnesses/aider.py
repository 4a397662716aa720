"""aider, from its Python package, over streamed chat completions without tools. Source of the recipe: agents.md."""

from __future__ import annotations

import json
from pathlib import Path

from longrein.harnesses.installed import installed
from longrein.harnesses.program import python_program
from longrein.types import Endpoint, Launch, Task

VERSION = "0.86.2"
_ENTRY = "aider/bin/aider"
_FOLDER = ".longrein"
_QUIET = (
    *("--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-git"),
    *("--no-show-release-notes", "--no-detect-urls", "--no-suggest-shell-commands", "--no-fancy-input", "--no-pretty"),
)


class Aider:
    """Runs ``aider`` on one message, without git, commands and a repository map: it edits the files that it is given.

    Args:
        binary: path of ``bin/aider`` in a virtual environment; by default where ``make agents`` puts it.
        edit_format: how the model writes its edits: ``diff``, ``whole``, ``udiff`` and others of aider's.
    """

    def __init__(self, binary: str = "", edit_format: str = "diff") -> None:
        self._program = python_program(Path(binary).absolute() if binary else installed(_ENTRY))
        self._edit_format = edit_format

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "aider"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the package is not there."""
        self._program.check(f"aider {VERSION} (it needs Python 3.12)")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """Every file of the task is open for edits; the message is read from a file, where it may be long."""
        model = f"openai/{endpoint.model}"
        limits = {"max_input_tokens": endpoint.context_length, "max_output_tokens": endpoint.max_tokens}
        settings = [{"name": model, "edit_format": self._edit_format, "extra_params": {"max_retries": 0}}]
        files = {
            f"{_FOLDER}/message.txt": task.prompt.encode(),
            f"{_FOLDER}/metadata.json": json.dumps({model: {**limits, "litellm_provider": "openai"}}).encode(),
            # Named at the start, they would make the folder that they share its root.
            f"{_FOLDER}/open.txt": "".join(f'/add "{path}"\n' for path in sorted(task.files)).encode(),
            # JSON is YAML.
            f"{_FOLDER}/settings.yml": json.dumps(settings).encode(),
        }
        options = (
            *("--model", model, "--model-metadata-file", f"$HOME/{_FOLDER}/metadata.json"),
            *("--model-settings-file", f"$HOME/{_FOLDER}/settings.yml"),
            *("--chat-history-file", f"$HOME/{_FOLDER}/chat.md", "--input-history-file", f"$HOME/{_FOLDER}/input"),
            *("--timeout", "3600", "--map-tokens", "0", "--load", f"$HOME/{_FOLDER}/open.txt"),
            *("--message-file", f"$HOME/{_FOLDER}/message.txt"),
        )
        return Launch(
            argv=(*self._program.argv, *_QUIET, *options),
            env={
                "OPENAI_API_BASE": f"{endpoint.base_url}/v1",
                "OPENAI_API_KEY": endpoint.api_key,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            files=files,
            readonly_mounts=self._program.mounts,
        )
