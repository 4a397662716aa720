"""An agent that behaves as its task says: well, badly, or not at all. Standard library only."""

import json
import os
import signal
import time
import urllib.error
import urllib.request

URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]


def post(path, body, key=KEY):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, ConnectionError):
        # A server may cut a connection instead of reading ten megabytes.
        return 0


def ask():
    message = {"role": "user", "content": os.environ["TASK_PROMPT"]}
    return post("/chat/completions", json.dumps({"model": "policy", "messages": [message]}).encode())


def solve():
    with open("answer.txt", "w") as file:
        file.write("42\n")


def garbage():
    base = URL.rsplit("/", 2)[0]
    assert post("/chat/completions", b"{not json") == 400
    assert post("/no/such/route", b"{}") == 404
    assert post("/chat/completions", b'{"messages": 7}') == 400
    assert post("/chat/completions", b"x" * 10_000_000) in (413, 0)
    request = urllib.request.Request(base + "/wrong-secret/v1/chat/completions", b"{}")
    try:
        urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        assert error.code == 401, error.code


behaviour = os.environ["TASK_PROMPT"].split()[0]
if behaviour == "never":
    raise SystemExit(0)
if behaviour == "stuck":
    time.sleep(3600)
if behaviour == "dies":
    raise SystemExit("no module named openai")
if behaviour == "garbage":
    garbage()
if behaviour == "only-garbage":
    garbage()
    raise SystemExit(0)
ask()
if behaviour == "idle":
    raise SystemExit(0)
if behaviour == "hang":
    solve()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
solve()
if behaviour == "rc3":
    raise SystemExit(3)
