"""What words do demo models know, and how does a chat look to them?

Byte-level BPE trained on local text: any string round-trips, and the same text gives the same tokenizer.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<s>", "<|end|>"
ASSISTANT = "<|assistant|>"
SPECIAL_TOKENS = (BOS, EOS, "<|system|>", "<|user|>", ASSISTANT)
BOS_ID, EOS_ID, ASSISTANT_ID = 0, 1, 4
"""Token ids follow the order of SPECIAL_TOKENS."""

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>' + message.content + '<|end|>' }}
    {%- elif message.role in ('system', 'developer') %}
        {{- '<|system|>' + message.content }}
    {%- elif message.role == 'user' %}
        {{- '<|user|>' + message.content }}
    {%- else %}
        {{- raise_exception('demo models know the roles system, user and assistant, not ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train at most `vocab` tokens: fewer when the text gives no more, at least 261 (bytes and special tokens)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, directory: Path, *, max_context_tokens: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": True,
        "model_max_length": max_context_tokens,
        "clean_up_tokenization_spaces": False,
    }
    generation = {"bos_token_id": BOS_ID, "eos_token_id": [EOS_ID], "do_sample": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
