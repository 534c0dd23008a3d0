"""What does a caller read to the end?"""

import json

from daemon_process import DaemonProcess


def ask(daemon: DaemonProcess, model: str, number: int) -> str:
    body = {
        "model": model, "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 400,
        "ignore_eos": True, "temperature": 0, "stream": True,
    }  # fmt: skip
    text = ""
    with daemon.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += event["choices"][0]["delta"].get("content", "")
    assert line == "" or line == "data: [DONE]"
    return text
