"""Do the README's examples do what they say, against a real daemon?"""

import contextlib
import io
import json
import re
from pathlib import Path

from daemon_process import DaemonProcess
from tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:11500"


def test_curl_and_openai_client(tiny_models_dir: Path, tmp_path: Path) -> None:
    body, path = re.search(r"curl " + re.escape(ADDRESS) + r"(\S+) .*?-d '(.*?)'\n```", README, re.DOTALL).group(2, 1)
    program = re.search(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-qwen3"]) as daemon:
        asked = json.loads(body) | {"model": "tiny-qwen3"}
        answer = daemon.http.post(path, json=asked)
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("data: [DONE]")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            here = program.replace(ADDRESS, daemon.url)
            exec(re.sub(r'model="[^"]+"', 'model="tiny-qwen3"', here), {})
        assert said.getvalue()
