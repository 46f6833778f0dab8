"""A seed in, random-token prompts of exact length out: alike for the same seed, distinct within it and between seeds.

Random tokens meet no prefix cache by chance. Out of scope: sending them.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from k3bench.errors import ServingError

#: Token ids below vocab / LOW_SHARE are left out: vocabularies begin with control tokens and single bytes.
LOW_SHARE = 8


@dataclass(frozen=True)
class Prompt:
    """Token ids and the digest that tells prompts apart in records."""

    tokens: tuple[int, ...]

    @property
    def digest(self) -> str:
        """sha256 of the ids as text."""
        return hashlib.sha256(" ".join(map(str, self.tokens)).encode()).hexdigest()

    @property
    def text(self) -> str:
        """For chat, which takes no ids: one word a token. A server's own count then says how many tokens it was."""
        return " ".join(f"t{token}" for token in self.tokens)


def random_prompts(count: int, *, isl_tokens: int, vocab: int, seed: str) -> tuple[Prompt, ...]:
    """`count` distinct prompts of `isl_tokens` ids in [vocab / 8, vocab). The seed is any text."""
    low = vocab // LOW_SHARE
    if (vocab - low) ** min(isl_tokens, 64) < 2 * count:
        raise ServingError(
            f"{count} distinct prompts of {isl_tokens} tokens do not exist over {vocab - low} token ids",
            fix="raise isl_tokens or serving.prompt_vocab",
        )
    generator, ids = random.Random(seed), range(low, vocab)
    found: dict[tuple[int, ...], Prompt] = {}
    while len(found) < count:
        tokens = tuple(generator.choices(ids, k=isl_tokens))
        found[tokens] = Prompt(tokens)
    return tuple(found.values())
