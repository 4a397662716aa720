"""One process starts all commands of an environment, so that they are in one place like those of a container."""

from __future__ import annotations

import asyncio
import time

import pytest

from longrein.errors import SandboxError
from tests.integrations.harbor.stand_in import stand_in

LISTENS = "until (exec 9<>/dev/tcp/127.0.0.1/{}) 2>/dev/null; do sleep 0.05; done"


async def test_a_command_has_its_folder_its_variables_and_both_its_outputs() -> None:
    async with stand_in("/app") as environment:
        said = await environment.shell.run(
            'pwd; echo "$A" >&2; exit 3', cwd="/app", env={"A": 'it\'s $5\nand "more"'}, timeout_s=20
        )
    assert (said.stdout, said.stderr, said.exit_code) == (b"/app\n", b'it\'s $5\nand "more"\n', 3)


async def test_what_a_command_leaves_running_is_there_for_the_next() -> None:
    async with stand_in() as environment:
        await environment.exec(
            f"nohup python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & {LISTENS.format(8123)}"
        )
        asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/').status)"
        assert (await environment.exec(f'python3 -c "{asked}"')).stdout == "200\n"


async def test_commands_run_at_once_and_past_its_time_one_is_killed_with_its_children() -> None:
    async with stand_in() as environment:
        # Here before there is anything else in it, should the time be over so soon.
        await environment.sandbox.write("beat", b"")
        slow = "(trap '' TERM; while :; do date +%s%N > beat; sleep 0.1; done) & wait"
        started_s = time.monotonic()
        results = await asyncio.gather(
            environment.shell.run(slow, cwd="/workdir", env={}, timeout_s=2.0),
            *(environment.shell.run("sleep 0.3; echo done", cwd="/workdir", env={}, timeout_s=60) for _ in range(4)),
        )
        assert time.monotonic() - started_s < 120
        assert (results[0].timed_out, results[0].exit_code) == (True, -9)
        assert [result.stdout for result in results[1:]] == [b"done\n"] * 4
        before = await environment.sandbox.read("beat")
        await asyncio.sleep(0.4)
        assert await environment.sandbox.read("beat") == before


async def test_a_command_whose_time_is_over_before_it_has_begun_is_killed_all_the_same() -> None:
    async with stand_in() as environment:
        late = await environment.shell.run("sleep 4321", cwd="/workdir", env={}, timeout_s=0)
        assert (late.timed_out, late.exit_code) == (True, -9)
        look = "for one in /proc/[0-9]*; do tr '\\0' ' ' < $one/cmdline; echo; done 2>/dev/null | grep -c '^sleep 4321'"
        assert (await environment.exec(look)).stdout == "0\n"


async def test_only_the_last_of_the_output_is_kept() -> None:
    async with stand_in() as environment:
        said = await environment.shell.run("yes | head -c 5000000; echo end", cwd="/workdir", env={}, timeout_s=60)
    assert len(said.stdout) == 1 << 20 and said.stdout.endswith(b"end\n")


async def test_output_that_is_more_than_can_be_read_at_once_is_no_fault() -> None:
    async with stand_in() as environment:
        said = await environment.shell.run("head -c 70000000 /dev/zero; echo end", cwd="/workdir", env={}, timeout_s=60)
    assert len(said.stdout) == 1 << 20 and said.stdout.endswith(b"end\n")


async def test_a_command_that_kills_the_others_starter_ends_the_environment() -> None:
    async with stand_in() as environment:
        with pytest.raises(SandboxError, match="gone"):
            await environment.shell.run("kill -KILL -1", cwd="/workdir", env={}, timeout_s=20)
        with pytest.raises(SandboxError, match="gone"):
            await environment.shell.run("true", cwd="/workdir", env={}, timeout_s=20)
