"""What ``opencode_mbpp.py`` trains on: the model, MBPP as tasks, OpenCode in a sandbox.

Change these by the environment: ``MODEL``, ``VLLM_URL``, ``MBPP`` (a hub id, or a local file with the same columns),
``MBPP_TASKS`` (how many).
"""

import os

from longrein import AgentSessionFactory
from longrein.harnesses.opencode import OpenCode
from longrein.sandboxes.choose import choose_backend
from longrein.tasks.hub import HubDataset
from longrein.tasks.problems import mbpp_task

MODEL = os.environ.get("MODEL", "Qwen/Qwen3-1.7B")
VLLM_URL = os.environ.get("VLLM_URL", "http://localhost:8000")
MBPP = os.environ.get("MBPP", "google-research-datasets/mbpp")
MBPP_TASKS = int(os.environ.get("MBPP_TASKS", "256"))


def build_dataset():
    """Problems of the train split: the agent writes solution.py, hidden assertions judge it."""
    return HubDataset(path=MBPP, make=mbpp_task).tasks("train", MBPP_TASKS, seed=0)


def build_factory():
    """OpenCode as it is, in bubblewrap where that works."""
    harness = OpenCode()
    harness.check()
    return AgentSessionFactory(harness=harness, backend=choose_backend("auto"))
