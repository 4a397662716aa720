"""What a call costs at the gateway, beside OpenEnv's and verifiers' servers: python bench/gateway.py [--quick]

Every server runs in a process of its own in front of the same canned engine; the kernel's clock of that process says
what its calls cost. The last line of stdout is one JSON object. See bench/README.md for what is measured how.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from gateway_bench import extras
from gateway_bench.cells import Cell, Table, all_cells, main_cells
from gateway_bench.payloads import PAYLOADS, Speaker
from gateway_bench.process import ServerProcess
from gateway_bench.report import Extras, Report, as_markdown, budgets, machine
from gateway_bench.scenes import Stage
from gateway_bench.servers import FLOOR, IN_PROCESS_TOKENS, OURS, TEMPLATE, Workshop, start_ours, start_own, start_peers
from gateway_bench.tokenizer import make_tokenizer

from longrein.engines.render import ChatRenderer

ROOT = Path(__file__).parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8k/200 only, one round, without the peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="a folder with a tokenizer")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench", help="where the peers are installed")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    tokenizer = make_tokenizer(args.model, args.folder / "tokenizer")
    report = asyncio.run(_run(tokenizer, args.folder, 1 if args.quick else args.rounds, quick=args.quick))
    print(as_markdown(report))
    print(msgspec.json.encode(report).decode())
    return 0


async def _run(tokenizer: Path, folder: Path, rounds: int, *, quick: bool) -> Report:
    began = time.perf_counter()
    speaker = Speaker(ChatRenderer.load(str(tokenizer), chat_template=TEMPLATE.read_text(encoding="utf-8")))
    upstream = await ServerProcess.start("upstream", "canned_upstream.py", python=[sys.executable])
    shop = Workshop(folder=folder, tokenizer=tokenizer, upstream=upstream.url)
    completion = folder / "completion.json"
    completion.write_text(json.dumps(speaker.completions(IN_PROCESS_TOKENS)[0].token_ids), encoding="ascii")
    own = await start_own(shop, completion)
    servers = own if quick else [*own, *await start_peers(shop)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
        table = Table(Stage(upstream.url, speaker, http))
        await table.warm_up(servers)
        await table.run(main_cells(PAYLOADS[:1] if quick else PAYLOADS), servers, rounds)
        if not quick:
            rest = [cell for cell in all_cells() if cell.name not in table.measured]
            await table.run(rest, [server for server in own if server.name in (OURS, FLOOR)], 1)
        more = await _extras(shop, table, Stage(upstream.url, speaker, http))
    for server in [*servers, upstream]:
        await server.stop()
    return Report(
        machine=machine(),
        load_average=os.getloadavg()[2],
        seconds=time.perf_counter() - began,
        cells=table.measured,
        extras=more,
        budgets=budgets(table.measured, more),
    )


async def _extras(shop: Workshop, table: Table, stage: Stage) -> Extras:
    """Each in a process of its own, because memory and caches of what ran before would count."""
    root = table.root(Cell(payload=extras.PAYLOAD, kind="growing", concurrency=1, stream=False))
    await stage.can(extras.PAYLOAD, root)
    server = await start_ours(shop, OURS, "--upstream", shop.upstream)
    await table.warm_up([server])
    first = await extras.first_calls(server, stage, root)
    whole_ms = await extras.whole_rollouts(server, stage, root)
    growth = await extras.growth_kb(server, stage, root)
    latency = await extras.added_latency_ms(server, stage, root)
    await server.stop()
    server = await start_ours(shop, OURS, "--upstream", shop.upstream, "--keep-alive-s", str(extras.PACED_S))
    paced_us = await extras.paced_event_us(server, stage, root)
    await server.stop()
    server = await start_ours(shop, OURS, "--upstream", shop.upstream)
    crowd = await extras.crowd(server, stage, root)
    await server.stop()
    return Extras(
        first_call=first,
        whole_rollout_ms=whole_ms,
        paced_event_us=paced_us,
        growth_kb=growth,
        added_latency_ms=latency,
        crowd=crowd,
    )


if __name__ == "__main__":
    sys.exit(main())
