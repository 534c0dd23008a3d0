"""`llmhostd bench` as it is typed, against a server of another make."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from openai_stand_in import StandIn, stand_in

COMMAND = str(Path(sys.executable).with_name("llmhostd"))


def typed(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def bench(*arguments: str | Path) -> tuple["subprocess.CompletedProcess[str]", StandIn]:
    async def play() -> tuple["subprocess.CompletedProcess[str]", StandIn]:
        async with stand_in() as server:
            command = [COMMAND, "bench", server.url, *map(str, arguments)]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
            )
            return done, server

    return asyncio.run(play())


def test_a_load_is_sent_measured_and_written_down(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done, server = bench(
        "--model", "good", "--model", "full", "--requests", "30", "--rate", "200", "--zipf", "0", "--no-warmup",
        "--input-tokens", "20-40", "--output-tokens", "3", "--tokens-per-word", "2", "--ignore-eos", "--json", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "requests met TTFT <= 2 s" in done.stdout
    result = json.loads(file.read_text())
    outcomes = [one["outcome"] for one in result["requests"]]
    asked = [body["model"] for body in server.requests]
    assert len(asked) == 30
    assert outcomes.count("refused") == asked.count("full") == result["summary"]["refused"]
    assert outcomes.count("completed") == asked.count("good") == result["summary"]["completed"]
    assert {len(body["messages"][0]["content"].split()) for body in server.requests} <= set(range(10, 21))
    assert all(body["ignore_eos"] and body["max_tokens"] == 3 for body in server.requests)


def test_the_same_seed_sends_the_same(tmp_path: Path) -> None:
    def sent(seed: int) -> list[str]:
        server = bench("--model", "good", "--requests", "5", "--rate", "1000", "--no-warmup", "--seed", str(seed))[1]
        return sorted(json.dumps(body) for body in server.requests)

    assert sent(1) == sent(1) != sent(2)


def test_a_trace_is_replayed_with_prompts_of_the_wanted_length(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,model_id,input_tokens,output_tokens\n0.0,0,70,2\n0.1,1,100,4\n0.2,2,70,1\n9.0,0,70,2\n")
    done, server = bench("--trace", trace, "--duration", "5", "--speed", "10", "--model", "a", "--model", "b")
    assert done.returncode == 0, done.stderr
    probes, requests = server.requests[:4], server.requests[4:]
    assert [len(body["messages"][0]["content"].split()) for body in probes] == [16, 96] * 2
    # 7 tokens and 1.5 a word, by this server's count.
    assert [(body["model"], len(body["messages"][0]["content"].split())) for body in requests] == [
        ("a", 42), ("b", 62), ("a", 42),
    ]  # fmt: skip


def test_prompts_from_a_file_in_turn(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("first line\n\nsecond line\n")
    _, server = bench("--model", "m", "--prompt-file", prompts, "--requests", "3", "--rate", "20", "--no-warmup")
    contents = [body["messages"][0]["content"] for body in server.requests]
    assert contents == ["first line", "second line", "first line"]


def test_what_cannot_be_asked_is_one_line(tmp_path: Path) -> None:
    done, _ = bench("--model", "broken", "--requests", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().endswith("does not answer for broken: 500 oops")
    done, _ = bench("--model", "good", "--trace", tmp_path / "absent.csv")
    assert (done.returncode, done.stdout) == (1, "")
    assert "absent.csv cannot be read" in done.stderr


def test_a_malformed_option_is_a_usage_error() -> None:
    for option, value in (("--input-tokens", "9-3"), ("--burst", "0,1"), ("--extra", "[]"), ("--rate", "0")):
        done, _ = bench("--model", "good", option, value)
        assert done.returncode == 2
        assert option in done.stderr
