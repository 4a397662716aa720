"""vLLM's weight version is a text: ours is the policy version in digits, and ``default`` before the first."""

from __future__ import annotations

from collections.abc import Sequence

from longrein.errors import EngineError, EngineUnreachableError

UNLABELLED = "default"
"""What a server calls the weights that it was started with."""


class Labels:
    """Reads the labels of completions.

    Unlabelled weights count as version 0 as long as no server of the run has shown a label. After that they are those
    of a server that was started again, and no policy of this run.
    """

    def __init__(self) -> None:
        self._published = False

    def see(self, label: str) -> None:
        """Note the label of a server's present weights. Raises :class:`EngineError` for one that is not ours."""
        if label != UNLABELLED:
            version_of(label)
            self._published = True

    def versions(self, labels: Sequence[str], url: str) -> tuple[int, ...]:
        """Policy versions of the labels of one completion.

        Raises:
            EngineUnreachableError: the server has not yet got back the weights it had.
            EngineError: a label that is no version of ours.
        """
        if self._published and UNLABELLED in labels:
            raise EngineUnreachableError(
                f"{url} was started again and samples with the weights it was started with; the trainer publishes "
                "them again if it still runs"
            )
        for label in labels:
            self.see(label)
        return tuple(version_of(label) for label in labels)


def version_of(label: str) -> int:
    """The policy version that a label stands for. Raises :class:`EngineError` for one that is not ours."""
    if label == UNLABELLED:
        return 0
    if not (label.isascii() and label.isdigit()):
        raise EngineError(
            f"the server calls its weights {label!r}, which is no policy version; somebody else publishes to it"
        )
    return int(label)
