"""A TOML run file -> frozen :class:`~longrein.config.RunConfig`, strictly: every problem is named at once."""

from __future__ import annotations

import difflib
import math
import tomllib
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import msgspec

from longrein.config import HarnessSection, RunConfig, Section
from longrein.errors import ConfigError
from longrein.redaction import shown

S = TypeVar("S", bound=msgspec.Struct)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong in a run file."""

    key: str
    value: Any
    fix: str


def config_error(source: str, problems: list[Problem]) -> ConfigError:
    """All problems of a run file as one error, each naming key, value (but for secrets) and fix."""
    lines = [f"  {problem.key} = {_shown(problem)}: {problem.fix}" for problem in problems]
    return ConfigError("\n".join([f"{source}: {len(lines)} problem(s) in the run file", *lines]))


def load_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read and check a run file.

    Args:
        path: the TOML file. Paths inside it are made absolute, relative to its folder.
        overrides: dotted key -> value, applied before checking (``{"model.path": "..."}``).

    Raises:
        ConfigError: unreadable file, bad TOML, or any wrong key, type or value: all of them in one message.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the run file: {error}. Give the path of a TOML run file.") from error
    except (ValueError, RecursionError) as error:
        # Beside its own error: numbers of thousands of digits, tables a thousand levels deep.
        raise ConfigError(f"{path}: not valid TOML: {error}. Mend the file at that line.") from error
    problems: list[Problem] = []
    for key, value in (overrides or {}).items():
        _set(data, key.split("."), value, problems)
    config = _decode(RunConfig, data, "", problems)
    if config is None:
        raise config_error(str(path), problems)
    config = _absolute(config, path.resolve().parent)
    problems += _impossible(config)
    if problems:
        raise config_error(str(path), problems)
    return config


def _set(data: dict[str, Any], keys: list[str], value: Any, problems: list[Problem]) -> None:
    for depth, key in enumerate(keys[:-1]):
        below = data.setdefault(key, {})
        if not isinstance(below, dict):
            problems.append(Problem(key=".".join(keys[: depth + 1]), value=below, fix="must be a table"))
            return
        data = cast(dict[str, Any], below)
    data[keys[-1]] = value


def _decode(kind: type[S], data: Any, prefix: str, problems: list[Problem]) -> S | None:
    """Decode one table key by key, so that every problem is found and not only the first."""
    if not isinstance(data, dict):
        problems.append(Problem(key=prefix.rstrip("."), value=data, fix="must be a table"))
        return None
    table = cast(dict[str, Any], data)
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found = len(problems)
    for key in table.keys() - known.keys():
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
        problems.append(Problem(key=prefix + key, value=table[key], fix=f"unknown key; {hint}"))
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name not in table:
            if field.required:
                problems.append(Problem(key=prefix + name, value=None, fix="required; add it"))
            continue
        values[name] = _decode_field(field.type, table[name], prefix + name, problems)
    return kind(**values) if len(problems) == found else None


def _decode_field(kind: object, value: Any, key: str, problems: list[Problem]) -> Any:
    for part in (kind, *get_args(kind)):
        # A table that may be absent is a Section | None.
        if isinstance(part, type) and issubclass(part, Section):
            return _decode(part, value, key + ".", problems)
    try:
        converted = msgspec.convert(value, cast(Any, kind), strict=True)
    except msgspec.ValidationError as error:
        problems.append(Problem(key=key, value=value, fix=str(error)))
        return None
    if isinstance(converted, float) and not math.isfinite(converted):
        problems.append(Problem(key=key, value=value, fix="must be a finite number"))
    return converted


def _absolute(config: RunConfig, folder: Path) -> RunConfig:
    """Make paths of the run file absolute; a model path that is no folder stays a hub id."""

    def resolve(path: str) -> str:
        return str((folder / path).resolve()) if path else ""

    model = config.model
    model_path = resolve(model.path) if (folder / model.path).exists() else model.path
    replace = msgspec.structs.replace
    return replace(
        config,
        output_dir=resolve(config.output_dir),
        model=replace(model, path=model_path, chat_template=resolve(model.chat_template)),
        sandbox=replace(config.sandbox, rootfs=resolve(config.sandbox.rootfs)),
        tasks=replace(
            config.tasks,
            folder=resolve(config.tasks.folder),
            # What is no file may be a hub id.
            path=resolve(config.tasks.path) if (folder / config.tasks.path).exists() else config.tasks.path,
            verifier=replace(
                config.tasks.verifier, function=_absolute_function(config.tasks.verifier.function, folder)
            ),
        ),
        engine=replace(config.engine, weights_folder=resolve(config.engine.weights_folder)),
        harness=replace(
            config.harness,
            script=resolve(config.harness.script),
            binary=resolve(config.harness.binary),
            # Its last link is kept: by it a virtual environment is known.
            python=str(folder / config.harness.python) if config.harness.python else "",
        ),
    )


def _absolute_function(function: str, folder: Path) -> str:
    file, colon, name = function.rpartition(":")
    return f"{(folder / file).resolve()}{colon}{name}" if file.endswith(".py") else function


def _missing_paths(config: RunConfig) -> list[Problem]:
    paths = {
        "model.chat_template": config.model.chat_template,
        "tasks.folder": config.tasks.folder,
        "harness.script": config.harness.script,
        "harness.python": config.harness.python,
        "harness.binary": config.harness.binary,
    }
    problems: list[Problem] = []
    for key, path in paths.items():
        kind = "folder" if key == "tasks.folder" else "file"
        if path and not (Path(path).is_dir() if kind == "folder" else Path(path).is_file()):
            problems.append(Problem(key=key, value=path, fix=f"no such {kind}; make it or correct the path"))
    return problems


def _impossible(config: RunConfig) -> list[Problem]:
    """Values that have the right type but cannot work."""
    problems = [*_missing_paths(config), *_impossible_engine(config), *_impossible_tasks(config)]
    problems += _cut_distribution(config)
    # Without the table the run file is of a model alone, as `longrein serve` takes it.
    named = config.harness != HarnessSection()
    if named and config.harness.name == "command" and bool(config.harness.argv) == bool(config.harness.script):
        problems.append(
            Problem(key="harness.argv", value=list(config.harness.argv), fix="give argv or script, not both")
        )
    if config.rollout.max_tokens >= config.model.context_length:
        fix = f"must be below model.context_length ({config.model.context_length})"
        problems.append(Problem(key="rollout.max_tokens", value=config.rollout.max_tokens, fix=fix))
    cache = config.rollout.overlong_cache_tokens
    if 0 < config.rollout.overlong_max_tokens < cache:
        fix = f"must be at most rollout.overlong_max_tokens ({config.rollout.overlong_max_tokens})"
        problems.append(Problem(key="rollout.overlong_cache_tokens", value=cache, fix=fix))
    if config.eval.require_improvement and not config.tasks.eval_count:
        fix = "needs tasks.eval_count of at least 2, or nothing can be compared"
        problems.append(Problem(key="eval.require_improvement", value=True, fix=fix))
    if not any(config.train.roles.weights().values()):
        problems.append(Problem(key="train.roles", value=config.train.roles.weights(), fix="let some role train"))
    too_many = [k for k in config.eval.pass_at if k > config.eval.samples]
    if too_many:
        fix = f"pass@k needs k <= eval.samples ({config.eval.samples})"
        problems.append(Problem(key="eval.pass_at", value=too_many, fix=fix))
    return problems


def _cut_distribution(config: RunConfig) -> list[Problem]:
    """The trainer's logprobs are of the whole distribution, so what it trains must be sampled from the whole."""
    rollout = config.rollout
    cuts_nothing: tuple[tuple[str, float, float], ...] = (
        ("top_p", rollout.top_p, 1.0),
        ("top_k", rollout.top_k, 0),
        ("min_p", rollout.min_p, 0.0),
    )
    return [
        Problem(
            key=f"rollout.{name}",
            value=value,
            fix=f"must be {whole:g}: the trainer's probabilities are of all tokens, and those of a cut distribution "
            f"are other ones; for judgement only, give eval.{name}",
        )
        for name, value, whole in cuts_nothing
        if value != whole
    ]


def _impossible_tasks(config: RunConfig) -> list[Problem]:
    tasks, problems = config.tasks, list[Problem]()
    if tasks.source == "harbor" and not tasks.folder:
        problems.append(Problem(key="tasks.folder", value="", fix="source 'harbor' needs a folder of task directories"))
    if tasks.source in ("jsonl", "dataset") and not tasks.path:
        problems.append(Problem(key="tasks.path", value="", fix=f"source '{tasks.source}' needs the path of its tasks"))
    if tasks.source == "jsonl" and tasks.path and not Path(tasks.path).is_file():
        problems.append(Problem(key="tasks.path", value=tasks.path, fix="no such file; make it or correct the path"))
    under_way = (config.rollout.max_staleness + 1) * config.train.groups_per_step
    if tasks.curriculum.rule == "pass_rate" and tasks.curriculum.lag_groups < under_way:
        fix = f"must be at least the groups that may be under way, (max_staleness + 1) * groups_per_step = {under_way}"
        problems.append(Problem(key="tasks.curriculum.lag_groups", value=tasks.curriculum.lag_groups, fix=fix))
    return problems


def _impossible_engine(config: RunConfig) -> list[Problem]:
    engine = config.engine
    problems: list[Problem] = []
    if engine.kind == "vllm" and not engine.urls:
        problems.append(Problem(key="engine.urls", value=[], fix="kind 'vllm' needs the URL of a server"))
    if engine.kind == "local" and (engine.urls or engine.command):
        problems.append(Problem(key="engine.kind", value="local", fix="urls and command are for kind 'vllm'"))
    if engine.weight_sync == "lora" and config.train.lora is None:
        problems.append(Problem(key="engine.weight_sync", value="lora", fix="needs a [train.lora] table"))
    return problems


def _shown(problem: Problem) -> str:
    # Before it is cut, or half a secret would be left.
    value = shown(problem.value, problem.key.rpartition(".")[2])
    text = "(absent)" if value is None else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
