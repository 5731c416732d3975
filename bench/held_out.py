"""Held-out cases of the embedded model's training families, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from tools.train_tiny import cases
from tools.train_tiny.data.base import Source, Split
from tools.train_tiny.data.rows import make_source

SEED = 11
END = "<|im_end|>"


@dataclass(frozen=True)
class Case:
    """A prompt and the right reply to it, in tokens."""

    prompt: list[int]
    reply: list[int]


class HeldOut:
    """Cases from names that never occur in training."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is a checkpoint's, with its tokenizer and template. Needs transformers."""
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)

    def short(self, count: int) -> dict[str, list[Case]]:
        """``count`` of every short family, without thinking."""
        families = cases.short_cases(self._source(), count, thinking=False)
        return {label: [self._tokens(case) for case in family] for label, family in families.items()}

    def recall(self, length: int, count: int) -> list[Case]:
        """Facts to find among others and in running words: ``count`` of each, prompts of 80 to 100 % of ``length``."""
        families = cases.recall_cases(self._source(), lambda case: len(self._prompt(case)), length, count)
        return [self._tokens(case) for family in families.values() for case in family]

    def _source(self) -> Source:
        return make_source(SEED, Split.HELD_OUT, [])

    def _tokens(self, case: cases.Case) -> Case:
        return Case(self._prompt(case), self._tokenizer(case.reference + END)["input_ids"])

    def _prompt(self, case: cases.Case) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            list(case.messages),
            tools=list(case.tools) or None,
            add_generation_prompt=True,
            enable_thinking=case.thinking,
            tokenize=False,
        )
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids
