"""What a server must show before anything is sampled from it. Each refusal names the flag that mends it."""

from __future__ import annotations

import msgspec
import numpy as np

from longrein.engines.base import EngineRequest
from longrein.engines.vllm.fleet import Member
from longrein.engines.vllm.model import PROBE, ModelFacts
from longrein.engines.vllm.routes import CompletionsRoute, Route, TokensRoute
from longrein.engines.vllm.server import Server
from longrein.errors import EngineError, EngineRouteError, EngineUnreachableError
from longrein.types import Sampling

ADAPTER = "longrein"
"""What the adapter in training is called on a server."""
ROUTES = (TokensRoute, CompletionsRoute)
_CERTAIN = -1e-6
"""Below this the logprob of a token that was sure to be sampled is that of another distribution."""


class ModelCard(msgspec.Struct, frozen=True):
    """An entry of ``/v1/models``."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[ModelCard]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of its model."""

    model: str
    root: str
    """The folder or hub id that it was started with."""
    context_length: int
    asked_as: str
    """The adapter in training if it is there, else the model."""


async def served(server: Server) -> Served:
    """Ask ``/v1/models``. Raises :class:`EngineError` for what is no vLLM server."""
    answer = await server.get("/v1/models")
    if not answer.ok:
        answer.refuse()
    return read_served(server.url, answer.body)


def read_served(url: str, body: bytes) -> Served:
    """The model among the answer of ``/v1/models``, and the adapter in training."""
    try:
        cards = msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError as error:
        raise EngineError(f"{url}/v1/models does not list models as a vLLM server does: {error}") from error
    base = next((card for card in cards if card.parent is None and card.max_model_len), None)
    if base is None:
        raise EngineError(f"{url}/v1/models names no model with its max_model_len; is it a vLLM server?")
    adapters = {card.id for card in cards if card.parent is not None}
    return Served(
        model=base.id,
        root=base.root or base.id,
        context_length=base.max_model_len or 0,
        asked_as=ADAPTER if ADAPTER in adapters else base.id,
    )


async def tokenized(server: Server, model: str, text: str) -> list[int]:
    """Ids of a text, none added. Raises :class:`EngineRouteError` where the server does not tokenize."""
    answer = await server.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    if not answer.ok:
        answer.refuse()
    return list(answer.field("tokens"))


async def check_tokenizer(server: Server, found: Served, facts: ModelFacts) -> None:
    """Raise :class:`EngineError` where a probe has other ids than the run's own tokenizer gives it."""
    try:
        theirs = await tokenized(server, found.model, PROBE)
    except EngineRouteError:
        return
    if theirs != list(facts.probe_ids):
        raise EngineError(
            f"{server.url} serves {found.root}, whose tokenizer gives {theirs[:12]}... where that of {facts.model} "
            f"gives {list(facts.probe_ids[:12])}...; start it with --model {facts.model}"
        )


async def working_route(server: Server, model: str, facts: ModelFacts) -> Route:
    """The best way to ask this server, by which a first completion came.

    Raises:
        EngineError: there is none, or its logprobs are not those of the sampled distribution.
    """
    for kind in ROUTES:
        route: Route = kind()
        try:
            await check_logprobs(Member(server=server, route=route, model=model), facts)
        except EngineRouteError:
            continue
        return route
    raise EngineError(
        f"{server.url} has no way to sample from token ids; start vLLM 0.32 or later with --enable-scale-out"
    )


async def check_logprobs(member: Member, facts: ModelFacts) -> None:
    """Sample one token that is certain, and see that its logprob says so.

    Raises:
        EngineRouteError: the route is closed.
        EngineError: it does not: the logprobs are of another distribution than the sampled one. Or none came.
    """
    request = EngineRequest(
        request_id="longrein-probe",
        conversation_id="longrein-probe",
        prompt_ids=np.array(facts.probe_ids, dtype=np.int32),
        sampling=Sampling(max_tokens=1, top_k=1),
    )
    try:
        sampled = await member.sample(request)
    except EngineUnreachableError as error:
        raise EngineError(f"the first completion failed: {error}") from error
    if sampled.token_ids.size != 1 or sampled.logprobs.size != 1:
        raise EngineError(
            f"{member.server.url} gave {sampled.token_ids.size} token ids and {sampled.logprobs.size} logprobs where "
            "one token was asked for; it takes vLLM 0.32 or a server that answers alike"
        )
    if float(sampled.logprobs[0]) < _CERTAIN:
        raise EngineError(
            f"{member.server.url} gives logprobs of another distribution than it samples from "
            f"({float(sampled.logprobs[0]):.3f} for a token that was certain); start it with --logprobs-mode "
            "processed_logprobs"
        )
