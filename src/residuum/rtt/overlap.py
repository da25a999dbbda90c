"""Do T and V share names or sentences? If they do, a gain on V may have been taught rather than recovered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NAME = re.compile(r"\b[^\W\d_a-z][\w'’-]*(?: [^\W\d_a-z][\w'’-]*)+")
"""Two or more words in a row that begin with a capital letter."""


def overlap_warnings(splits: Mapping[str, Sequence[str]]) -> list[str]:
    """One sentence for each thing that several splits share: whole texts, and names inside texts.

    Args:
        splits: the texts of each split by its name.
    """
    found = []
    for what, parts in (("is, word for word, also", _whole), ("has a name that is also", _names)):
        homes: dict[str, set[str]] = {}
        for split, texts in splits.items():
            for text in texts:
                for part in parts(text):
                    homes.setdefault(part, set()).add(split)
        shared = {part for part, places in homes.items() if len(places) > 1}
        if not shared:
            continue
        texts_of = [text for texts in splits.values() for text in texts]
        hit = [(text, part) for text in texts_of for part in parts(text) if part in shared]
        count, (_, first) = len({text for text, _ in hit}), hit[0]
        places = ", ".join(sorted(homes[first]))
        found.append(
            f"{count} of {len(texts_of)} texts: each {what} in another split (first: {first!r} in {places})."
            " T is then not independent of V."
        )
    return found


def _whole(text: str) -> list[str]:
    return [" ".join(text.casefold().split())]


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(_NAME.findall(text)))
