"""Words of a command line or an environment that no kernel takes, and that would end an option of ours early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from longrein.errors import SandboxError


def require_words(argv: Iterable[str], env: Mapping[str, str] | None = None) -> None:
    """Raise :class:`~longrein.errors.SandboxError` for a word with a NUL character, or that is no text.

    bwrap reads its options from a file in which NUL ends each of them: by one in a task's prompt, which is in the
    agent's environment, the task could mount what it likes.
    """
    variables = {f"variable {name!r}": f"{name}{value}" for name, value in (env or {}).items()}
    for what, word in (*(("an argument", word) for word in argv), *variables.items()):
        if "\0" in word:
            raise SandboxError(f"{what} of a command holds a NUL character, which no command can be given; remove it")
        try:
            word.encode(errors="surrogateescape")
        except UnicodeEncodeError as error:
            raise SandboxError(f"{what} of a command is no text: {error}; mend it") from error
