"""TOML run file -> frozen :class:`RunConfig`, strictly: every problem is named before anything starts."""

from __future__ import annotations

import difflib
import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec

from longrein.errors import ConfigError

Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
S = TypeVar("S", bound=msgspec.Struct)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of a run file."""


class ModelSection(Section, frozen=True, kw_only=True):
    """``[model]``: which causal LM, and how conversations become tokens for it."""

    path: str
    """Folder or hub id. Relative folders are relative to the run file, if they exist there."""
    chat_template: str = ""
    """Jinja file used in place of the tokenizer's own template; empty keeps the tokenizer's."""
    tool_parser: str = "auto"
    renderer: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    context_length: Positive = 2048


class TasksSection(Section, frozen=True, kw_only=True):
    """``[tasks]``: a procedural suite by family names, or a folder of Harbor task directories."""

    source: Literal["procedural", "harbor"] = "procedural"
    families: tuple[str, ...] = ()
    """Family names of the procedural suite; empty means all."""
    folder: str = ""
    shuffle: bool = True
    """Every epoch in a new seeded order; false keeps the source's order (the procedural suite takes turns)."""
    train_count: Positive = 256
    eval_count: NonNegative = 32


class HarnessSection(Section, frozen=True, kw_only=True):
    """``[harness]``: which agent runs, unmodified."""

    name: str = "command"
    argv: tuple[str, ...] = ()
    """For ``command``: the argv to run inside the sandbox."""
    script: str = ""
    """For ``command``: a Python file shipped into the sandbox and run there (instead of ``argv``)."""
    env: dict[str, str] = {}
    binary: str = ""
    """For an installed agent: path of its binary; empty means where ``make agents`` puts it."""


class SandboxSection(Section, frozen=True, kw_only=True):
    """``[sandbox]``: where the agent works."""

    backend: Literal["auto", "bubblewrap", "subprocess"] = "auto"
    memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 2048
    pids: Positive = 512


class RolloutSection(Section, frozen=True, kw_only=True):
    """``[rollout]``: how attempts are made."""

    num_generations: Annotated[int, msgspec.Meta(ge=2)] = 8
    max_inflight: Positive = 8
    """Sessions running at once."""
    max_staleness: NonNegative = 1
    temperature: PositiveFloat = 1.0
    max_tokens: Positive = 256
    """Per call; the agent may ask for less."""
    max_calls: Positive = 64
    agent_timeout_s: PositiveFloat | None = None
    """Overrides the task's own."""


class SftSection(Section, frozen=True, kw_only=True):
    """``[sft]``: warm start on oracle rollouts collected through the gateway; ``steps = 0`` skips it."""

    steps: NonNegative = 0
    batch_size: Positive = 8
    """Demonstrations a step."""
    learning_rate: PositiveFloat = 5e-5
    tool: str = "bash"
    """The agent's tool that the oracle speaks through."""
    argument: str = "command"
    """The argument of that tool which takes a shell command."""
    closing: str = "Done."
    """What the oracle says last."""


class TrainSection(Section, frozen=True, kw_only=True):
    """``[train]``: the GRPO step."""

    max_steps: Positive = 10
    groups_per_step: Positive = 3
    learning_rate: PositiveFloat = 1e-5
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegative = 0
    max_grad_norm: PositiveFloat = 1.0
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    adam_beta2: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 0.2
    epsilon_high: PositiveFloat = 0.2
    loss_aggregation: Literal["token", "rollout"] = "token"
    micro_batch_tokens: Positive = 4096
    gradient_checkpointing: bool = False
    save_steps: NonNegative = 0
    """Checkpoint every so many steps; 0 saves the final model only."""
    report_to: tuple[str, ...] = ()


class EvalSection(Section, frozen=True, kw_only=True):
    """``[eval]``: the held-out judgement."""

    samples: Positive = 1
    """Rollouts a task."""
    max_inflight: Positive = 16
    """Sessions at once; nothing trains meanwhile, so it may be more than ``rollout.max_inflight``."""
    pass_at: tuple[Positive, ...] = (1,)
    require_improvement: bool = False
    """``train`` exits 1 unless the paired interval of the trained model minus its start excludes 0."""


class ComputeSection(Section, frozen=True, kw_only=True):
    """``[compute]``: fixed CPU threads, since two busy processes slow each other down."""

    engine_threads: Positive = 1
    trainer_threads: Positive = 1
    max_batch: Positive = 32
    """Requests decoded together."""


class RunConfig(Section, frozen=True, kw_only=True):
    """One run, whole. See ``docs/run-file.md`` for every key."""

    output_dir: str
    model: ModelSection
    seed: NonNegative = 0
    tasks: TasksSection = TasksSection()
    harness: HarnessSection = HarnessSection()
    sandbox: SandboxSection = SandboxSection()
    rollout: RolloutSection = RolloutSection()
    sft: SftSection = SftSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    compute: ComputeSection = ComputeSection()


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong in a run file."""

    key: str
    value: Any
    fix: str


def config_error(source: str, problems: list[Problem]) -> ConfigError:
    """All problems of a run file as one error, each naming key, value and fix."""
    lines = [f"  {problem.key} = {_shown(problem.value)}: {problem.fix}" for problem in problems]
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
    except tomllib.TOMLDecodeError as error:
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
    if isinstance(kind, type) and issubclass(kind, Section):
        return _decode(kind, value, key + ".", problems)
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
        tasks=replace(config.tasks, folder=resolve(config.tasks.folder)),
        harness=replace(config.harness, script=resolve(config.harness.script), binary=resolve(config.harness.binary)),
    )


def _impossible(config: RunConfig) -> list[Problem]:
    """Values that have the right type but cannot work."""
    problems: list[Problem] = []

    def missing(key: str, path: str, kind: str) -> None:
        exists = Path(path).is_dir() if kind == "folder" else Path(path).is_file()
        if path and not exists:
            problems.append(Problem(key=key, value=path, fix=f"no such {kind}; make it or correct the path"))

    missing("model.chat_template", config.model.chat_template, "file")
    missing("tasks.folder", config.tasks.folder, "folder")
    missing("harness.script", config.harness.script, "file")
    missing("harness.binary", config.harness.binary, "file")
    if config.tasks.source == "harbor" and not config.tasks.folder:
        problems.append(Problem(key="tasks.folder", value="", fix="source 'harbor' needs a folder of task directories"))
    if config.harness.name == "command" and bool(config.harness.argv) == bool(config.harness.script):
        problems.append(
            Problem(key="harness.argv", value=list(config.harness.argv), fix="give argv or script, not both")
        )
    if config.rollout.max_tokens >= config.model.context_length:
        fix = f"must be below model.context_length ({config.model.context_length})"
        problems.append(Problem(key="rollout.max_tokens", value=config.rollout.max_tokens, fix=fix))
    if config.eval.require_improvement and not config.tasks.eval_count:
        fix = "needs tasks.eval_count of at least 2, or nothing can be compared"
        problems.append(Problem(key="eval.require_improvement", value=True, fix=fix))
    too_many = [k for k in config.eval.pass_at if k > config.eval.samples]
    if too_many:
        fix = f"pass@k needs k <= eval.samples ({config.eval.samples})"
        problems.append(Problem(key="eval.pass_at", value=too_many, fix=fix))
    return problems


def _shown(value: Any) -> str:
    text = "(absent)" if value is None else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
