"""Small tokenizers made on the spot, for tests without real ones."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{{ bos_token }}{% if date_string is defined %}[{{ date_string }}]{% endif %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_TEXT = (
    "Question: Where was Ada Brook born?\nAnswer: Ada Brook was born in Port Ellen. Yes, she was born there. She said"
)


def fast_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE, closes_texts: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE whose words are single tokens; it begins every text with ``<|begin|>``."""
    specials = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([_TEXT] * 10, trainer)
    frame = "<|begin|> $A <|end|>" if closes_texts else "<|begin|> $A"
    core.post_processor = processors.TemplateProcessing(single=frame, special_tokens=[("<|begin|>", 1), ("<|end|>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", bos_token="<|begin|>", eos_token="<|end|>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


class SlowTokenizer(PreTrainedTokenizer):
    """Cuts before white space and around punctuation, and cannot say which characters a token covers."""

    def __init__(self, **kwargs: Any) -> None:
        self.vocabulary: dict[str, int] = {}
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocabulary)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return re.findall(r"\s?\w+|\s?[^\w\s]|\s", text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocabulary.setdefault(token, len(self.vocabulary))
