"""``longrein serve RUN.toml``: the run's model on the embedded engine, for whatever wants a URL."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import msgspec

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.model_folder import check_context_length, with_model_folder
from longrein.config import RunConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.render import ChatRenderer
from longrein.errors import CheckpointError, LongreinError
from longrein.gateway.server import HOST
from longrein.run_file import Problem, config_error
from longrein.serve.served import ServedModel
from longrein.serve.server import ServedEngine, ServeSettings, open_server
from longrein.train.folder_weights import folder_weights

PORT = 8000
KEY_VARIABLE = "LONGREIN_API_KEY"


class _GenerationFile(msgspec.Struct, frozen=True):
    """The part of ``generation_config.json`` that is read; its sampling defaults are not."""

    eos_token_id: int | list[int] | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of every run, and those of the server."""
    add_run_arguments(parser)
    parser.add_argument("--host", default=HOST, help=f"address to listen on, {HOST} by default")
    parser.add_argument("--port", type=int, default=PORT, help=f"{PORT} by default; 0 takes a free one and prints it")
    parser.add_argument(
        "--api-key",
        default=os.environ.get(KEY_VARIABLE, ""),
        help=f"what every request must bring; {KEY_VARIABLE} by default",
    )
    parser.add_argument("--served-model-name", action="append", default=[], help="a name in place of the model's path")
    parser.add_argument("--record", action="store_true", help="keep every session in the run directory")
    parser.add_argument("--session-idle-s", type=float, default=600.0, help="when a named session is over")


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = read_run_file(arguments)
    names = _names(config, arguments.served_model_name)
    config = _checked(config, str(arguments.run_file))
    settings = ServeSettings(
        host=arguments.host,
        port=arguments.port,
        api_key=arguments.api_key,
        record_to=Path(config.output_dir) if arguments.record else None,
        session_idle_s=arguments.session_idle_s,
    )
    with LocalEngineProcess(parts.engine_config(config)) as process:
        asyncio.run(_serve(config, process, names, settings))
    return 0


async def _serve(
    config: RunConfig, process: LocalEngineProcess, names: tuple[str, ...], settings: ServeSettings
) -> None:
    stop = _on_signals()
    engine = await process.spec.connect()
    tokenizer = parts.training_tokenizer(config)
    renderer = ChatRenderer.of(
        cast(Any, tokenizer), tool_parser=config.model.tool_parser, renderer=config.model.renderer
    )
    info = process.info
    served = ServedModel(
        names=names,
        folder=config.model.path,
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        eos_token_ids=_eos_token_ids(config.model.path, cast(Any, tokenizer).eos_token_id),
        tokenizer=cast(Any, tokenizer),
    )
    owned = ServedEngine(engine=engine, receiver=process.weights, switch=process, read_weights=folder_weights)
    try:
        async with open_server(served, owned, renderer, parts.gateway_settings(config), settings) as server:
            print(f"longrein: {served.name} is served at {server.url}", flush=True)
            _print_uses(server.url, settings)
            dead = asyncio.create_task(server.until_dead())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({dead, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if dead.done():
                dead.result()
            dead.cancel()
    finally:
        await engine.close()


def _on_signals() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM.

    Not by the loop's own signal handlers: those would take over the wakeup descriptor that bounds a Ctrl-C.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_soon(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_soon)
    return stop


def _checked(config: RunConfig, source: str) -> RunConfig:
    """With the model as a local folder. Raises :class:`~longrein.errors.ConfigError`: all that is wrong with it."""
    problems: list[Problem] = []
    if config.engine.kind != "local":
        fix = "longrein serve serves the embedded engine; a vLLM server has routes of its own"
        problems.append(Problem(key="engine.kind", value=config.engine.kind, fix=fix))
    probes = (
        ("model.path", config.model.path, lambda: parts.renderer_spec(with_model_folder(config)).load()),
        ("model.context_length", config.model.context_length, lambda: check_context_length(config)),
    )
    for key, value, probe in probes:
        try:
            probe()
        except LongreinError as error:
            problems.append(Problem(key=key, value=value, fix=str(error)))
    if problems:
        raise config_error(source, problems)
    return with_model_folder(config)


def _names(config: RunConfig, asked: list[str]) -> tuple[str, ...]:
    """As vLLM names a model: by the path it was given. The folder's own name does as well."""
    return tuple(asked) or tuple(dict.fromkeys((config.model.path, Path(config.model.path).name)))


def _eos_token_ids(folder: str, of_tokenizer: int | None) -> tuple[int, ...]:
    """What ends a completion: the tokenizer's own, and what the model's ``generation_config.json`` names.

    Raises:
        CheckpointError: that file cannot be read.
    """
    file = Path(folder) / "generation_config.json"
    try:
        named = msgspec.json.decode(file.read_bytes(), type=_GenerationFile).eos_token_id if file.exists() else None
    except (msgspec.DecodeError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; mend it, or take it away") from error
    several = named if isinstance(named, list) else [named]
    return tuple(dict.fromkeys(one for one in (of_tokenizer, *several) if one is not None))


def _print_uses(url: str, settings: ServeSettings) -> None:
    print(f"  OpenAI base URL {url}/v1, or {url}/<session name>/v1 for one conversation kept token by token")
    print(f"  token ids {url}/inference/v1/generate, vllm_server_url = {url}")
    if settings.record_to:
        print(f"  sessions are recorded in {settings.record_to}")
    if settings.host not in (HOST, "localhost", "::1") and not settings.api_key:
        print("  WARNING: whoever reaches this address may use the model and change its weights; give --api-key")
    print("  Ctrl-C ends it", flush=True)


COMMAND = Command(
    name="serve",
    help="serve the run's model over HTTP: token routes and agents' dialects",
    configure=configure,
    run=run,
)
