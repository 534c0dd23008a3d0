import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmhostd.demo.vocabulary import ASSISTANT_ID, BOS_ID, EOS_ID
from llmhostd.domain.errors import CallerError, CheckpointError
from llmhostd.text.cache import TokenizerCache, TokenizerPolicy
from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import read_tokenizer


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    yield made
    made.close()


@pytest.fixture
def checkpoint(tiny_models_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_models_dir / "tiny-llama", tmp_path / "model")


def test_text_and_tokens(checkpoint: Path, process: TemplateProcess) -> None:
    tokenizer = read_tokenizer(checkpoint, "wren", process)
    assert tokenizer.vocab == 320
    assert tokenizer.eos_token_ids == (EOS_ID,)
    ids = tokenizer.encode("machine 日本 😀")
    assert ids[0] == BOS_ID
    assert tokenizer.encode("machine 日本 😀", add_special_tokens=False) == ids[1:]
    assert tokenizer.decode(ids) == "machine 日本 😀"
    detokenizer = tokenizer.detokenizer()
    assert "".join([detokenizer.push(one) for one in ids] + [detokenizer.flush()]) == "machine 日本 😀"
    assert b"".join(tokenizer.token_bytes(one) for one in ids[1:]).decode() == "machine 日本 😀"
    assert tokenizer.token_bytes(EOS_ID) == b"<|end|>"
    assert tokenizer.token_bytes(10**6) == b""


def test_a_chat_becomes_tokens(checkpoint: Path, process: TemplateProcess) -> None:
    tokenizer = read_tokenizer(checkpoint, "wren", process)
    text = tokenizer.chat_template.render([{"role": "user", "content": "words"}])
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert (ids[0], ids[-1]) == (BOS_ID, ASSISTANT_ID)


def test_half_of_a_surrogate_pair_is_the_callers_error(checkpoint: Path, process: TemplateProcess) -> None:
    with pytest.raises(CallerError, match="half of a surrogate pair"):
        read_tokenizer(checkpoint, "wren", process).encode("\ud83d")


def test_all_ids_that_end_an_answer(checkpoint: Path, process: TemplateProcess) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5]}))
    assert read_tokenizer(checkpoint, "wren", process).eos_token_ids == (EOS_ID, 5, 7)
    (checkpoint / "generation_config.json").unlink()
    (checkpoint / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<s>"}}))
    assert read_tokenizer(checkpoint, "wren", process).eos_token_ids == (BOS_ID, 9)


def test_special_tokens_stored_as_objects(checkpoint: Path, process: TemplateProcess) -> None:
    config = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "<|end|>", "pad_token": None}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_tokenizer(checkpoint, "wren", process).special_tokens == {"bos_token": "<s>", "eos_token": "<|end|>"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, r"tokenizer\.json is missing"),
        ("tokenizer.json", "{}", r"tokenizer\.json: not a tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json: must be a JSON object"),
        ("generation_config.json", "\xff", r"generation_config\.json: not JSON"),
    ],
)
def test_a_broken_file_is_named(
    checkpoint: Path, process: TemplateProcess, file: str, content: str | None, message: str
) -> None:
    (checkpoint / file).unlink()
    if content is not None:
        (checkpoint / file).write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(checkpoint, "wren", process)


def test_the_cache_keeps_what_fits_least_recently_used_out_first(
    tiny_models_dir: Path, process: TemplateProcess, tmp_path: Path
) -> None:
    places = [tmp_path / name for name in "abc"]
    for number, place in enumerate(places):
        shutil.copytree(tiny_models_dir / "tiny-llama", place)
        with (place / "tokenizer.json").open("a") as file:
            file.write("\n" * number)
    size = TokenizerCache(process)
    size.get("m", places[2])
    cache = TokenizerCache(process, TokenizerPolicy(tokenizer_cache_bytes=2 * size.held_bytes()))
    first, second = (cache.get("m", place) for place in places[:2])
    assert cache.get("m", places[0]) is first
    cache.get("m", places[2])
    assert cache.held_bytes() <= 2 * size.held_bytes()
    assert cache.get("m", places[0]) is first
    assert cache.get("m", places[1]) is not second


def test_models_with_the_same_file_share_what_was_read_and_nothing_else(
    tiny_models_dir: Path, process: TemplateProcess, tmp_path: Path
) -> None:
    shutil.copytree(tiny_models_dir / "tiny-llama", tmp_path / "tuned")
    settings = tmp_path / "tuned" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": "{{ messages[0].content }}!"}))
    (tmp_path / "tuned" / "chat_template.jinja").unlink(missing_ok=True)
    cache = TokenizerCache(process)
    first = cache.get("m", tiny_models_dir / "tiny-llama")
    held_bytes = cache.held_bytes()
    second = cache.get("tuned", tmp_path / "tuned")
    assert second.vocabulary is first.vocabulary
    assert cache.held_bytes() == held_bytes
    said = [one.chat_template.render([{"role": "user", "content": "hi"}]) for one in (first, second)]
    assert said[1] == "hi!" != said[0]
    assert second.encode("hello") == first.encode("hello")


def test_the_cache_forgets_a_removed_model(tiny_models_dir: Path, process: TemplateProcess) -> None:
    cache, path = TokenizerCache(process), tiny_models_dir / "tiny-llama"
    first = cache.get("m", path)
    cache.forget(path)
    assert cache.held_bytes() == 0
    assert cache.get("m", path) is not first
