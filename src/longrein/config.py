"""What a run file may say, table by table, with its defaults and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec

from longrein.types import ROLE_WEIGHTS, AdvantageName, Role

Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Weight = Annotated[float, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]


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


class CurriculumSection(Section, frozen=True, kw_only=True):
    """``[tasks.curriculum]``: which tasks come more often, see :mod:`longrein.rollout.curriculum`."""

    rule: Literal["uniform", "pass_rate"] = "uniform"
    target: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    """For ``pass_rate``, as all below: the pass rate at which a cell of tasks comes most often."""
    window: Positive = 64
    """Judged rollouts of a cell that make its recent pass rate."""
    explore: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.2
    """Share of groups that are drawn from all cells alike."""
    lag_groups: Positive = 16
    """A group is chosen by what came of groups at least so many before it."""
    by: tuple[str, ...] = ("family", "difficulty")
    """Keys of the tasks' metadata: tasks that have them alike make up a cell."""


class VerifierSection(Section, frozen=True, kw_only=True):
    """``[tasks.verifier]``: who judges, within which bounds."""

    function: str = ""
    """``module:function`` or ``file.py:function`` that judges in Python; empty means the tasks' own hidden tests."""
    memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 2048
    pids: Positive = 512
    timeout_s: PositiveFloat | None = None
    """Overrides the task's own."""


class TasksSection(Section, frozen=True, kw_only=True):
    """``[tasks]``: where tasks come from, which of them, and in what order."""

    source: Literal["procedural", "harbor", "jsonl", "dataset", "mbpp", "deepcoder", "humaneval", "reasoning_gym"] = (
        "procedural"
    )
    families: tuple[str, ...] = ()
    """Families or suites of the procedural suite, empty means all; data sets of ``reasoning_gym``."""
    held_out_families: tuple[str, ...] = ()
    """Of the procedural suite: these make up the test split and are not trained on."""
    difficulty: tuple[Positive, ...] = ()
    """Levels of the procedural suite; empty means all."""
    folder: str = ""
    """Of Harbor task directories."""
    path: str = ""
    """Of ``jsonl``, ``dataset``, ``mbpp`` or ``deepcoder``: a file, or a hub id."""
    subset: str = ""
    """Of a data set on the hub."""
    shuffle: bool = True
    """Every epoch in a new seeded order; false keeps the source's order (the procedural suite takes turns)."""
    train_count: Positive = 256
    eval_count: NonNegative = 32
    curriculum: CurriculumSection = CurriculumSection()
    verifier: VerifierSection = VerifierSection()


class HarnessSection(Section, frozen=True, kw_only=True):
    """``[harness]``: which agent runs, unmodified."""

    name: str = "command"
    argv: tuple[str, ...] = ()
    """For ``command``: the argv to run inside the sandbox."""
    script: str = ""
    """For ``command``: a Python file shipped into the sandbox and run there (instead of ``argv``)."""
    python: str = ""
    """For ``script``: the interpreter, a virtual environment's say; empty means ours, without what is installed."""
    env: dict[str, str] = {}
    binary: str = ""
    """For an installed agent: path of its binary; empty means where ``make agents`` puts it."""
    options: dict[str, Any] = {}
    """For an installed agent: what its harness takes besides, such as ``compact_at``."""


class SandboxSection(Section, frozen=True, kw_only=True):
    """``[sandbox]``: where the agent works."""

    backend: Literal["auto", "bubblewrap", "subprocess", "docker", "podman"] = "auto"
    memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 2048
    pids: Positive = 512
    cpus: PositiveFloat = 4.0
    """Of processor time in a second."""
    disk_mb: Annotated[int, msgspec.Meta(ge=16)] = 4096
    """What the files of a session may take; who takes more is killed."""
    rootfs: str = ""
    """For ``bubblewrap``: folder with another root file system than the host's."""
    image: str = ""
    """For ``docker`` and ``podman``: the image that agents run in."""


class RolloutSection(Section, frozen=True, kw_only=True):
    """``[rollout]``: how attempts are made."""

    num_generations: Annotated[int, msgspec.Meta(ge=2)] = 8
    max_inflight: Positive = 8
    """Sessions running at once."""
    max_staleness: NonNegative = 1
    temperature: PositiveFloat = 1.0
    top_p: Fraction = 1.0
    """This and the next two cut the distribution; only ``[eval]`` may, so each must stay at what cuts nothing."""
    top_k: NonNegative = 0
    min_p: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    max_tokens: Positive = 256
    """Per call; the agent may ask for less."""
    max_calls: Positive = 64
    """A session; once over this or a limit below, its agent gets a final answer that nobody sampled."""
    max_sampled_tokens: Positive = 10_000_000
    max_session_s: PositiveFloat = 86_400.0
    max_context_refusals: NonNegative = 3
    """Prompts too long for the context that are refused before the final answer comes."""
    engine_timeout_s: PositiveFloat = 1800.0
    """One try at a completion; after three the rollout is unscorable."""
    agent_timeout_s: PositiveFloat | None = None
    """Overrides the task's own."""
    overlong_max_tokens: NonNegative = 0
    """Sampled tokens of a rollout at which its reward has lost 1; 0 punishes no length."""
    overlong_cache_tokens: Positive = 1024
    """How many tokens before that it begins to lose."""


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


class RolesSection(Section, frozen=True, kw_only=True):
    """``[train.roles]``: what multiplies the loss of each role's tokens; 0 leaves them out."""

    agent: Weight = ROLE_WEIGHTS["agent"]
    subagent: Weight = ROLE_WEIGHTS["subagent"]
    retry: Weight = ROLE_WEIGHTS["retry"]
    compaction: Weight = ROLE_WEIGHTS["compaction"]
    auxiliary: Weight = ROLE_WEIGHTS["auxiliary"]

    def weights(self) -> dict[Role, float]:
        """Role -> weight."""
        return cast("dict[Role, float]", msgspec.structs.asdict(self))


class LoraSection(Section, frozen=True, kw_only=True):
    """``[train.lora]``: GRPO trains adapters and leaves the model as it is. Without the table, all weights train."""

    rank: Positive = 16
    alpha: Positive = 32
    """The update of a weight is ``alpha / rank * B @ A``."""
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """In training only; the engine samples without, so above 0 its logprobs are no longer the trainer's."""
    target_modules: tuple[str, ...] = ()
    """Ends of module names; empty means every linear layer but the output head."""


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
    loss: Literal["grpo", "gspo", "cispo", "reinforce"] = "grpo"
    advantage: AdvantageName = "group_normalised"
    loss_aggregation: Literal["token", "rollout", "rollout_sum", "group", "constant"] = "token"
    epsilon: PositiveFloat = 0.2
    epsilon_high: PositiveFloat = 0.2
    delta: PositiveFloat | None = None
    """Bound of the ratio where the advantage is negative."""
    beta: Weight = 0.0
    """Weight of the KL to the model that training starts from."""
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"
    importance_sampling: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    importance_sampling_cap: PositiveFloat = 2.0
    importance_sampling_floor: Weight = 0.0
    equal_groups: Literal["count", "drop", "replace"] = "drop"
    micro_batch_tokens: Positive = 4096
    shared_prefix: bool = True
    """Feed a beginning that rows share once, in place of once a row."""
    gradient_checkpointing: bool = False
    save_steps: NonNegative = 0
    """Checkpoint every so many steps; 0 saves the final model only, and a resumed run begins GRPO again."""
    save_total_limit: Positive | None = None
    """Checkpoints that are kept, the newest."""
    report_to: tuple[str, ...] = ()
    roles: RolesSection = RolesSection()
    lora: LoraSection | None = None


class EvalSection(Section, frozen=True, kw_only=True):
    """``[eval]``: the held-out judgement."""

    samples: Positive = 1
    """Rollouts a task."""
    max_inflight: Positive = 16
    """Sessions at once; nothing trains meanwhile, so it may be more than ``rollout.max_inflight``."""
    temperature: Weight | None = None
    """Overrides ``rollout.temperature``; 0 is greedy."""
    top_p: Fraction = 1.0
    top_k: NonNegative = 0
    """0 keeps all."""
    min_p: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    pass_at: tuple[Positive, ...] = (1,)
    require_improvement: bool = False
    """``train`` exits 1 unless the paired interval of the trained model minus its start excludes 0."""


class ComputeSection(Section, frozen=True, kw_only=True):
    """``[compute]``: fixed CPU threads, since two busy processes slow each other down."""

    engine_threads: Positive = 1
    trainer_threads: Positive = 1
    max_batch: Positive = 32
    """Requests decoded together."""


class EngineSection(Section, frozen=True, kw_only=True):
    """``[engine]``: what samples completions. Without the table, the embedded engine does."""

    kind: Literal["local", "vllm"] = "local"
    urls: tuple[str, ...] = ()
    """For ``vllm``: base URLs of servers, all of the run's model."""
    weight_sync: Literal["folder", "delta", "lora", "nccl"] = "folder"
    """For ``vllm``: how new weights get to the servers."""
    weights_folder: str = ""
    """Where weights are written for the servers to read; empty means in the run directory."""
    pause: Literal["keep", "wait"] = "keep"
    """What an update does to requests in flight."""
    command: tuple[str, ...] = ()
    """For ``vllm``: starts the servers, one a URL; empty means that somebody else did."""
    env: dict[str, str] = {}
    """Added to the environment of ``command``."""
    start_timeout_s: PositiveFloat = 600.0
    update_timeout_s: PositiveFloat = 300.0
    """One update of one server."""
    outage_timeout_s: PositiveFloat = 300.0
    """How long a server that does not answer is waited for."""


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
    engine: EngineSection = EngineSection()
