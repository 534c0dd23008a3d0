"""How do prompts become tokens without the event loop waiting for it?

Templates, encoding and reading tokenizers run in two threads; the libraries release the GIL for what takes long.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llmhostd.api.service import Conversation, Prompt, RefusedError
from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import CallerError, CheckpointError
from llmhostd.domain.ids import ModelName
from llmhostd.text.cache import TokenizerCache
from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import ModelTokenizer


class Texts:
    """Tokenizers and templates of all models."""

    def __init__(self, process: TemplateProcess, cache: TokenizerCache) -> None:
        self._process = process
        self._cache = cache
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")

    async def encode(
        self, model: ModelName, places: Sequence[Path], prompts: Sequence[Prompt]
    ) -> tuple[ModelTokenizer, list[tuple[int, ...]]]:
        """Return the model's tokenizer and each prompt's token ids, at least one. `places`: see `Models.text_of`.

        Raises CallerError naming the field; RefusedError when the model's own files are broken.
        """
        kept = self._cache.kept(places[0])
        if kept is not None and all(isinstance(one, tuple) for one in prompts):
            return kept, [self._one(kept, one) for one in prompts]  # tokens already: a thread would take longer
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._encode, model, places, prompts)
        except CheckpointError as error:
            # The caller cannot mend it; whoever runs the box can.
            raise RefusedError(Refusal.MODEL_BROKEN, str(error), retry_after_s=60.0) from error

    def forget(self, checkpoint: Path) -> None:
        """Drop a tokenizer whose files may have changed."""
        self._cache.forget(checkpoint)

    def start(self) -> None:
        """Get ready in the background, so that the first chat need not wait."""
        self._threads.submit(self._process.start)

    def close(self) -> None:
        """End threads and the templates' process."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._process.close()

    def _encode(
        self, model: ModelName, places: Sequence[Path], prompts: Sequence[Prompt]
    ) -> tuple[ModelTokenizer, list[tuple[int, ...]]]:
        tokenizer = self._cache.get(model, *places)
        return tokenizer, [self._one(tokenizer, prompt) for prompt in prompts]

    def _one(self, tokenizer: ModelTokenizer, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, Conversation):
            text = tokenizer.chat_template.render(prompt.messages, variables=prompt.variables)
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            field = "messages"
        elif isinstance(prompt, str):
            ids, field = tuple(tokenizer.encode(prompt)), "prompt"
        else:
            ids, field = prompt, "prompt"
            beyond = next((one for one in ids if one >= tokenizer.vocab), None)
            if beyond is not None:
                raise CallerError(f"prompt: token {beyond} is not in 0..{tokenizer.vocab - 1}", field="prompt")
        if not ids:
            raise CallerError(f"{field}: is empty: there is no token to begin with", field=field)
        return ids
