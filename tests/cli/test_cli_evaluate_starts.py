"""`llmhostd evaluate-starts` as it is typed."""

import json

from typed_commands import llmhostd


def test_the_comparison_is_printed_for_people_and_for_programs() -> None:
    said = llmhostd("evaluate-starts", "--seeds", "1", "--processes", "1")
    assert said.returncode == 0, said.stderr
    assert "(1.95 x)" in said.stdout
    done = llmhostd("evaluate-starts", "--seeds", "1", "--processes", "1", "--json")
    rows = json.loads(done.stdout)
    assert {(row["size"], row["dataset"]) for row in rows} >= {("opt-6.7b", "gsm8k"), ("opt-30b", "sharegpt")}
    assert all(row["ratio"]["serverlessllm"] == 1.0 for row in rows)


def test_whole_systems_are_compared_too() -> None:
    said = llmhostd("evaluate-starts", "--systems", "--seeds", "1", "--processes", "1")
    assert said.returncode == 0, said.stderr
    assert "(12.1 s)" in said.stdout
    assert "fig. 12b" in said.stdout
