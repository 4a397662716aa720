"""An agent that keeps what the model says in reply.txt, and runs what it calls. Standard library only."""

import json
import os
import subprocess
import urllib.request

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": PARAMETERS}}


def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages, "tools": [BASH]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


messages = [{"role": "user", "content": os.environ["TASK_PROMPT"]}]
for _ in range(3):
    reply = ask(messages)
    messages.append(reply)
    with open("reply.txt", "a", encoding="utf-8") as file:
        file.write(reply.get("content") or "")
    if not reply.get("tool_calls"):
        break
    for call in reply["tool_calls"]:
        command = json.loads(call["function"]["arguments"]).get("command", "")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
