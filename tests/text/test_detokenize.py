import json
from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from llmhostd.demo.vocabulary import EOS_ID, train_tokenizer
from llmhostd.text.detokenize import ByteLevelDetokenizer, Detokenizer, WindowDetokenizer, byte_level_texts
from llmhostd.text.output import OutputText

TEXT = "日本語 中文 emoji 😀😃👩‍👩‍👧‍👦 naïve café — the same words again and again, the same words " * 5


@cache
def byte_level() -> Tokenizer:
    tokenizer = train_tokenizer([TEXT], 330)
    tokenizer.add_tokens([AddedToken("an added word", normalized=False)])
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral 7B: `▁` for spaces, `<0xE6>` for bytes that are no token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["the same words again and again naive cafe " * 5], trainer)
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    merges = _merges(tokenizer)
    for token in alphabet:
        vocab[token] = len(vocab)
    tokenizer.model = models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    return tokenizer


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


@cache
def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def pieces_of(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [detokenizer.push(token_id) for token_id in token_ids] + [detokenizer.flush()]


def byte_level_detokenizer() -> ByteLevelDetokenizer:
    return ByteLevelDetokenizer(byte_level_texts(byte_level()))


@given(st.lists(st.integers(0, 335), max_size=40))
def test_any_byte_level_tokens_even_broken_ones_add_up_to_the_decoding_of_the_whole(token_ids: list[int]) -> None:
    whole = byte_level().decode(token_ids, skip_special_tokens=True)
    assert "".join(pieces_of(byte_level_detokenizer(), token_ids)) == whole


@given(st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"])))
def test_byte_level_pieces_of_real_text_never_split_a_character(text: str) -> None:
    token_ids = byte_level().encode(text, add_special_tokens=False).ids
    pieces = pieces_of(byte_level_detokenizer(), token_ids)
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@given(st.text(st.characters(exclude_characters="<▁\ufffd", exclude_categories=["Cs"])))
def test_byte_fallback_pieces_of_real_text_never_split_a_character(text: str) -> None:
    token_ids = byte_fallback().encode(text, add_special_tokens=False).ids
    pieces = pieces_of(WindowDetokenizer(byte_fallback()), token_ids)
    assert "".join(pieces) == byte_fallback().decode(token_ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.sampled_from(["the", "same", "words", "日本語", "again", "café", "xyz"]), max_size=20))
def test_word_pieces_add_up(words: list[str]) -> None:
    token_ids = word_piece().encode(" ".join(words)).ids
    assert "".join(pieces_of(WindowDetokenizer(word_piece()), token_ids)) == word_piece().decode(token_ids)


def test_bytes_that_never_become_a_character_are_not_held_back_for_ever() -> None:
    broken = byte_fallback().token_to_id("<0xE6>")
    detokenizer = WindowDetokenizer(byte_fallback())
    shown = "".join(detokenizer.push(broken) for _ in range(100))
    assert shown.count("\ufffd") > 90


def test_special_and_unknown_tokens_have_no_text() -> None:
    assert pieces_of(byte_level_detokenizer(), [EOS_ID, 10_000]) == ["", "", ""]


def test_output_ends_at_a_stop_string_that_begins_inside_a_token() -> None:
    tokenizer = byte_level()
    token_ids = tokenizer.encode("same words 😀 again and the rest", add_special_tokens=False).ids
    output, shown = OutputText(byte_level_detokenizer(), ["gain and"]), ""
    for token_id in token_ids:
        shown += output.push(token_id)
    assert output.stopped
    assert shown + output.finish() == "same words 😀 a"


def test_output_without_a_stop_string_is_whole() -> None:
    token_ids = byte_level().encode("again 😀", add_special_tokens=False).ids
    output = OutputText(byte_level_detokenizer(), ["😀!"])
    shown = "".join(output.push(token_id) for token_id in token_ids)
    assert shown == "again "
    assert shown + output.finish() == "again 😀"
    assert not output.stopped
