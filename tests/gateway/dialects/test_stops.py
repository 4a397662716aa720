"""Stop strings: as many as anybody uses, in every dialect that has them."""

from __future__ import annotations

from typing import Any

import pytest

from longrein.gateway.dialects.stops import MAX_STOPS
from tests.gateway.rig import rig, say
from tests.gateway.tongues import TONGUES, Tongue


def asking(tongue: Tongue, stops: list[str]) -> dict[str, Any]:
    match tongue.name:
        case "chat":
            return {"stop": stops}
        case "messages":
            return {"stop_sequences": stops}
        case _:
            return {"generationConfig": {"stopSequences": stops}}


WITH_STOPS = {name: tongue for name, tongue in TONGUES.items() if tongue.name != "responses"}


@pytest.mark.parametrize("tongue", WITH_STOPS.values(), ids=WITH_STOPS)
async def test_a_long_list_of_stop_strings_is_refused(tongue: Tongue) -> None:
    async with rig([say("ok")]) as r:
        heard = await tongue.ask(r, "go", **asking(tongue, ["x"] * (MAX_STOPS + 1)))
        assert heard.status == 400 and tongue.refuses(heard) and f"at most {MAX_STOPS}" in heard.text
        assert not r.engine.requests
        stops = [f"stop {number}" for number in range(MAX_STOPS - 1)]
        heard = await tongue.ask(r, "go", **asking(tongue, [*stops, ""]))
        assert heard.status == 200
        [request] = r.engine.requests
        assert request.sampling.stop == tuple(stops)
