"""Conversations on the terminal, as TRL's own worker prints them."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from longrein.integrations.trl.samples import Sample
from longrein.types import Message, RolloutGroup


class ConversationPrinter:
    """Prints some samples of each group that is delivered.

    Args:
        count: samples of a group to print; 0 for none.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._console = Console()

    def __call__(self, group: RolloutGroup, samples: tuple[Sample, ...]) -> None:
        """Print the first ones."""
        for sample in samples[: self._count]:
            text = Text()
            for message in (*sample.prompt, *sample.completion):
                text.append(f"{message.get('role')}: ", style="dim")
                text.append(f"{_said(message)}\n")
            title = f"group {group.group_id} · task {group.task.task_id} · advantage {sample.advantage:+.2f}"
            # As text: brackets in a task's name are no markup.
            self._console.print(Panel(text, title=Text(title)))


def _said(message: Message) -> str:
    parts = [str(message.get(key)) for key in ("content", "tool_calls") if message.get(key)]
    return "\n".join(parts)
