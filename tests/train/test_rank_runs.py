"""Whole runs on several ranks, by the launchers that people use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import tiny
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "tests" / "train" / "rank_run.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines=1", "--mixed_precision=no"]
SHARDING = ["--use_fsdp", "--fsdp_version=2", "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP"]
LAUNCHERS: dict[str, list[str]] = {
    "torchrun 2": [*TORCHRUN, "--nproc-per-node=2"],
    "torchrun 4": [*TORCHRUN, "--nproc-per-node=4"],
    "accelerate 2": [*ACCELERATE, "--dynamo_backend=no", "--num_processes=2", "--multi_gpu"],
    "accelerate fsdp2 2": [*ACCELERATE, "--dynamo_backend=no", "--num_processes=2", *SHARDING],
}
FSDP = {"fsdp": True}


def launch(launcher: Sequence[str], *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=environment,
        cwd=ROOT,
    )


def run(launcher: Sequence[str], folder: Path, out: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    out.mkdir(exist_ok=True)
    return launch(launcher, str(folder), str(out), json.dumps(changes))


def same_curve(out: Path, reference: Path) -> None:
    ours, theirs = (json.loads((where / "lines.json").read_text()) for where in (out, reference))
    assert ours["versions"] == theirs["versions"]
    assert ours["versions"][-4:] == [1, 2, 3, 4]
    for line, expected in zip(ours["lines"], theirs["lines"], strict=True):
        for name in ("loss", "grad_norm", "entropy", "logprob_gap_mean"):
            assert line[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-5), name
        for name in ("reward", "rows", "trained_tokens", "learning_rate"):
            assert line[name] == expected[name], name
    sent, expected = (load_file(where / "sent.safetensors") for where in (out, reference))
    for name, tensor in expected.items():
        # A step moves a weight by up to 1e-3; Adam's first ones make much of any rounding.
        torch.testing.assert_close(sent[name], tensor, rtol=0, atol=2e-5, msg=name)


def reloads(out: Path, architecture: str = "LlamaForCausalLM") -> None:
    """What was saved is what was sent last."""
    model = AutoModelForCausalLM.from_pretrained(out / "final")
    assert model.config.architectures == [architecture]
    assert AutoTokenizer.from_pretrained(out / "final").chat_template
    sent = load_file(out / "sent.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), sent[name], rtol=0, atol=0, msg=name)


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    done = run([sys.executable], folder, out)
    assert done.returncode == 0, done.stderr
    return out


def test_two_ranks_train_as_one(folder: Path, tmp_path: Path, alone: Path) -> None:
    done = run(LAUNCHERS["torchrun 2"], folder, tmp_path)
    assert done.returncode == 0, done.stderr
    same_curve(tmp_path, alone)
    reloads(tmp_path)


@pytest.mark.agents
@pytest.mark.parametrize(
    ("launcher", "changes"),
    [
        ("torchrun 4", {}),
        ("torchrun 2", FSDP),
        ("torchrun 4", FSDP),
        ("accelerate fsdp2 2", {}),
        ("torchrun 2", {"loss": "gspo", "epsilon": 3e-4, "epsilon_high": 4e-4, "micro_batch_tokens": 8}),
    ],
    ids=["ddp-4", "fsdp2-2", "fsdp2-4", "accelerate-fsdp2", "gspo-cut"],
)
def test_ranks_train_as_one(folder: Path, tmp_path: Path, alone: Path, launcher: str, changes: dict[str, Any]) -> None:
    reference = alone
    if "loss" in changes:
        reference = tmp_path / "alone"
        assert run([sys.executable], folder, reference, **changes).returncode == 0
    done = run(LAUNCHERS[launcher], folder, tmp_path, **changes)
    assert done.returncode == 0, done.stderr
    same_curve(tmp_path, reference)
    reloads(tmp_path)


@pytest.mark.agents
@pytest.mark.parametrize("changes", [{}, FSDP], ids=["ddp", "fsdp2"])
def test_a_rank_that_dies_stops_all_and_the_run_goes_on(
    folder: Path, tmp_path: Path, alone: Path, changes: dict[str, Any]
) -> None:
    saving = {**changes, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    started_s = time.monotonic()
    died = run(LAUNCHERS["torchrun 2"], folder, tmp_path, **saving, dies=[1, 2])
    assert died.returncode != 0
    # The others would wait for a week.
    assert time.monotonic() - started_s < 300
    assert "exitcode  : 3" in died.stderr and "rank      : 1" in died.stderr
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    resumed = run(LAUNCHERS["torchrun 2"], folder, tmp_path, **saving)
    assert resumed.returncode == 0, resumed.stderr
    told = json.loads((tmp_path / "lines.json").read_text())
    assert told["versions"] == [2, 3, 4]
    sent, expected = (load_file(where / "sent.safetensors") for where in (tmp_path, alone))
    for name, tensor in expected.items():
        torch.testing.assert_close(sent[name], tensor, rtol=0, atol=2e-5, msg=name)
    reloads(tmp_path)


LORA: dict[str, Any] = {
    "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "up_proj"]},
    "beta": 0.1,
    "learning_rate": 1e-2,
    "save_strategy": "steps",
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def adapted_alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapted")
    done = run([sys.executable], folder, out, **LORA)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.agents
@pytest.mark.parametrize("takes_adapters", [False, True], ids=["merged", "adapters"])
@pytest.mark.parametrize("changes", [{}, FSDP], ids=["ddp", "fsdp2"])
def test_ranks_train_adapters_as_one_and_go_on_from_them(
    folder: Path, tmp_path: Path, adapted_alone: Path, changes: dict[str, Any], takes_adapters: bool
) -> None:
    options = {**LORA, **changes, "takes_adapters": takes_adapters}
    died = run(LAUNCHERS["torchrun 2"], folder, tmp_path, **options, dies=[1, 2])
    assert "exitcode  : 3" in died.stderr, died.stderr
    for path in tmp_path.glob("checkpoint-*"):
        assert [weights.name for weights in path.glob("*.safetensors")] == ["adapter_model.safetensors"]
    resumed = run(LAUNCHERS["torchrun 2"], folder, tmp_path, **options)
    assert resumed.returncode == 0, resumed.stderr
    told, alone = (json.loads((where / "lines.json").read_text()) for where in (tmp_path, adapted_alone))
    assert told["versions"] == ([2, 2, 3, 4] if takes_adapters else [2, 3, 4])
    for line, expected in zip(told["lines"], alone["lines"], strict=True):
        for name in ("loss", "grad_norm", "kl", "entropy"):
            assert line[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    sent, expected = (load_file(where / "sent.safetensors") for where in (tmp_path, adapted_alone))
    for name, tensor in expected.items():
        torch.testing.assert_close(sent[name], tensor, rtol=0, atol=1e-5, msg=name)
    reloads(tmp_path)


@pytest.mark.agents
def test_a_run_goes_on_with_another_number_of_ranks_but_not_sharded(folder: Path, tmp_path: Path, alone: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    died = run(LAUNCHERS["torchrun 2"], folder, tmp_path, **saving, dies=[1, 2])
    assert died.returncode != 0
    refused = run(LAUNCHERS["torchrun 2"], folder, tmp_path, **saving, **FSDP)
    assert "sharded was False and is True" in refused.stderr
    resumed = run([sys.executable], folder, tmp_path, **saving)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((tmp_path / "lines.json").read_text())["versions"] == [2, 3, 4]
    sent, expected = (load_file(where / "sent.safetensors") for where in (tmp_path, alone))
    for name, tensor in expected.items():
        torch.testing.assert_close(sent[name], tensor, rtol=0, atol=2e-5, msg=name)


@pytest.mark.agents
def test_a_mixture_of_experts_trains_on_ranks_with_its_router_loss(tmp_path: Path) -> None:
    """A balance is a product of means, so of two halves it is about that of the whole."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_experts_per_tok": 2, "num_local_experts": 4}
    asks = {"output_router_logits": True, "router_aux_loss_coef": 0.3}
    model = tiny.save_model(tmp_path / "model", "mixtral", **sizes, **asks)
    losses: list[list[float]] = []
    for launcher, changes in (([sys.executable], {}), (LAUNCHERS["torchrun 2"], {}), (LAUNCHERS["torchrun 2"], FSDP)):
        out = tmp_path / str(len(losses))
        done = run(launcher, model, out, **changes)
        assert done.returncode == 0, done.stderr
        losses.append([line["router_loss"] for line in json.loads((out / "lines.json").read_text())["lines"]])
        reloads(out, "MixtralForCausalLM")
    assert losses[1] == pytest.approx(losses[2], rel=1e-3)
    assert losses[1] == pytest.approx(losses[0], rel=0.2)


@pytest.mark.agents
def test_mixed_precision_is_the_same_sharded(folder: Path, tmp_path: Path) -> None:
    """Scores are not rounded once more; sums over ranks are in float32."""
    for name, changes in (("ddp", {}), ("fsdp2", FSDP)):
        done = run(LAUNCHERS["torchrun 2"], folder, tmp_path / name, bf16=True, **changes)
        assert done.returncode == 0, done.stderr
    whole, sharded = (json.loads((tmp_path / name / "lines.json").read_text())["lines"] for name in ("ddp", "fsdp2"))
    for line, expected in zip(sharded, whole, strict=True):
        assert line["entropy"] == pytest.approx(expected["entropy"], rel=2e-4)
        assert line["logprob_gap_max"] == pytest.approx(expected["logprob_gap_max"], rel=1e-3)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=5e-2)


@pytest.mark.agents
@pytest.mark.parametrize("changes", [{}, FSDP], ids=["ddp", "fsdp2"])
def test_what_a_callback_wants_on_one_rank_all_do(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    for rank in (0, 1):
        out = tmp_path / str(rank)
        done = run(LAUNCHERS["torchrun 2"], folder, out, stops=[rank, 2], **changes)
        assert done.returncode == 0, done.stderr
        assert json.loads((out / "lines.json").read_text())["versions"] == [1, 2]


def side_by_side(folder: Path, out: Path, *changes: dict[str, Any]) -> list[str]:
    """What two ranks say without a launcher, which would end one as soon as the other fails; both must."""
    out.mkdir(exist_ok=True)
    port = free_port()
    common = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(folder), str(out), json.dumps(own)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**common, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
        for rank, own in zip("01", changes, strict=True)
    ]
    told = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [1, 1], told
    return told


@pytest.mark.agents
@pytest.mark.parametrize(
    ("changes", "raised", "reason"),
    [
        ({"worker_dies": "the disk is full"}, "WorkerError", "the disk is full"),
        ({"refuses_after": -1}, "EngineError", "the engine is gone"),
        ({"refuses_after": 1}, "EngineError", "the engine is gone"),
        ({"refuses_after": 1, **FSDP}, "EngineError", "the engine is gone"),
    ],
    ids=["worker", "first weights", "later weights", "sharded"],
)
def test_why_rank_0_stops_is_said_by_all(
    folder: Path, tmp_path: Path, changes: dict[str, Any], raised: str, reason: str
) -> None:
    told = side_by_side(folder, tmp_path / "out", changes, changes)
    assert f"{raised}: {reason}" in told[0]
    assert f"RankError: rank 0 stopped: {reason}" in told[1]
    assert (tmp_path / "out" / "stopped").read_text() == "1"


@pytest.mark.agents
def test_ranks_that_see_different_checkpoints_do_not_train(folder: Path, tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "own_dirs": True}
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    assert run([sys.executable], folder, tmp_path, **saving, dies=[0, 2]).returncode == 3
    for said in side_by_side(folder, tmp_path, saving, saving):
        assert "CheckpointError: ranks would go on from different checkpoints" in said
        assert "(steps by rank: [2, 'none'])" in said
