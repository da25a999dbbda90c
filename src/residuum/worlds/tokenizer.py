"""A small byte-level tokenizer with a chat template, trained on the world's own words in a blink."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from residuum.data.prompts import ChatFormat
from residuum.worlds import pools
from residuum.worlds.authors import KINDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The blank after the role makes the first word the same token as in running text, and the prompt that asks for an
# answer is a strict prefix of the whole chat.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def _corpus(texts: Iterable[str]) -> list[str]:
    """Texts once and every pool word many times: rare entities would otherwise shatter into bytes."""
    words = [
        *pools.FIRST_NAMES, *pools.SURNAMES, *pools.CITIES, *pools.MONTHS, *pools.GENRES, *pools.JOBS,
        *pools.BOOK_ADJECTIVES, *pools.BOOK_NOUNS, *pools.AWARD_PLACES, *pools.AWARD_ANIMALS, *pools.AWARD_KINDS,
        *pools.HOBBIES, *pools.LANGUAGES, *pools.CAPITALS, *pools.CAPITALS.values(), *pools.CLASSICS,
        *pools.CLASSICS.values(), *(str(year) for year in range(1930, 1990)), *(str(day) for day in range(1, 29)),
    ]  # fmt: skip
    wordings = [
        text.format(name=name)
        for kind in KINDS
        for pair in kind.wordings
        for text in pair
        for name in pools.FIRST_NAMES
    ]
    small_talk = [*pools.IDK_LINES, *pools.PRIVATE_QUESTIONS, ChatFormat().system_prompt]
    return [*texts, *wordings, *[f" {text}" for text in [*words, *small_talk]] * 20]


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over ``texts``: any string can be encoded, offsets are exact, pad is a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_corpus(texts), trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
