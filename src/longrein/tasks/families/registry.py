"""Families by the names that run files use, and suites of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longrein.errors import TaskError
from longrein.tasks.families.base import Family
from longrein.tasks.families.coding.codec import Codec
from longrein.tasks.families.coding.command_line import CommandLine
from longrein.tasks.families.coding.evaluate_expression import EvaluateExpression
from longrein.tasks.families.coding.fix_mutant import FixMutant
from longrein.tasks.families.coding.group_report import GroupReport
from longrein.tasks.families.coding.implement_function import ImplementFunction
from longrein.tasks.families.coding.parse_records import ParseRecords
from longrein.tasks.families.coding.refactor_modules import RefactorModules
from longrein.tasks.families.coding.small_class import SmallClass
from longrein.tasks.families.coding.state_machine import StateMachine
from longrein.tasks.families.shell.archives import Archives
from longrein.tasks.families.shell.count_files import CountFiles
from longrein.tasks.families.shell.deduplicate import Deduplicate
from longrein.tasks.families.shell.edit_config import EditConfig
from longrein.tasks.families.shell.git_history import GitHistory
from longrein.tasks.families.shell.join_tables import JoinTables
from longrein.tasks.families.shell.links import Links
from longrein.tasks.families.shell.log_analysis import LogAnalysis
from longrein.tasks.families.shell.permissions import Permissions
from longrein.tasks.families.shell.rename_by_rule import RenameByRule
from longrein.tasks.families.shell.text_columns import TextColumns
from longrein.tasks.families.spelled.append_number import AppendNumber
from longrein.tasks.families.spelled.follow_note import FollowNote
from longrein.tasks.families.spelled.make_folder import MakeFolder
from longrein.tasks.families.spelled.rename_file import RenameFile
from longrein.tasks.families.spelled.spell_number import SpellNumber
from longrein.tasks.families.spelled.write_number import WriteNumber

_SUITES: Mapping[str, tuple[Family, ...]] = {
    "spelled": (WriteNumber(), RenameFile(), MakeFolder(), AppendNumber(), SpellNumber(), FollowNote()),
    "shell": (
        CountFiles(), RenameByRule(), LogAnalysis(), Permissions(), JoinTables(), EditConfig(), GitHistory(),
        Archives(), TextColumns(), Links(), Deduplicate(),
    ),
    "coding": (
        ImplementFunction(), FixMutant(), ParseRecords(), StateMachine(), RefactorModules(), CommandLine(),
        SmallClass(), Codec(), GroupReport(), EvaluateExpression(),
    ),
}  # fmt: skip
SUITES: Mapping[str, tuple[str, ...]] = {
    suite: tuple(family.name for family in families) for suite, families in _SUITES.items()
}
"""Suite -> the names of its families. A run file may name either."""
FAMILIES: Mapping[str, Family] = {family.name: family for families in _SUITES.values() for family in families}


def families_named(names: Sequence[str]) -> tuple[Family, ...]:
    """The families of these names, in this order, those of a suite in the suite's; all of them for no names.

    Raises:
        TaskError: naming every unknown name, and the known ones.
    """
    unknown = [name for name in names if name not in FAMILIES and name not in SUITES]
    if unknown:
        known = f"{', '.join(FAMILIES)}; suites: {', '.join(SUITES)}"
        raise TaskError(f"no task family is named {', '.join(map(repr, unknown))}; known: {known}")
    found = [member for name in names or FAMILIES for member in SUITES.get(name, (name,))]
    return tuple(FAMILIES[name] for name in dict.fromkeys(found))
