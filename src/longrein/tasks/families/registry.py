"""Families by the names that run files use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longrein.errors import TaskError
from longrein.tasks.families.append_number import AppendNumber
from longrein.tasks.families.base import Family
from longrein.tasks.families.follow_note import FollowNote
from longrein.tasks.families.make_folder import MakeFolder
from longrein.tasks.families.rename_file import RenameFile
from longrein.tasks.families.spell_number import SpellNumber
from longrein.tasks.families.write_number import WriteNumber

_ALL: tuple[Family, ...] = (
    WriteNumber(),
    RenameFile(),
    MakeFolder(),
    AppendNumber(),
    SpellNumber(),
    FollowNote(),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}


def families_named(names: Sequence[str]) -> tuple[Family, ...]:
    """The families of these names, in this order; all of them for no names.

    Raises:
        TaskError: naming every unknown name, and the known ones.
    """
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise TaskError(f"no task family is named {', '.join(map(repr, unknown))}; known: {', '.join(FAMILIES)}")
    return tuple(FAMILIES[name] for name in names or FAMILIES)
