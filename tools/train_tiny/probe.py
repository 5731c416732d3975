"""Held-out accuracy during training, by teacher forcing.

A greedy reply equals the reference exactly iff the model's first choice is right at every token of it, so one forward
pass measures exact-match accuracy; agreement of draft and trunk gives the acceptance of the first MTP draft.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.train_tiny import corpus
from tools.train_tiny.data.base import Split
from tools.train_tiny.data.mixture import STAGES, TEXT
from tools.train_tiny.data.rows import Reply, RowMaker, make_source
from tools.train_tiny.fake_quant import FakeQuantiser
from tools.train_tiny.model import Rows, TinyModel
from tools.train_tiny.step import predict, targets


@dataclass
class Score:
    """Counts of one table row."""

    replies: int = 0
    exact: int = 0
    tokens: int = 0
    right: int = 0
    drafts: int = 0
    accepted: int = 0

    def line(self) -> str:
        """Returns ``n, exact %, token %, first draft accepted %``."""
        drafts = max(self.drafts, 1)
        return (
            f"n {self.replies:5d}  exact {100 * self.exact / max(self.replies, 1):5.1f}  "
            f"token {100 * self.right / max(self.tokens, 1):5.1f}  draft {100 * self.accepted / drafts:5.1f}"
        )


@dataclass
class Probe:
    """Fixed held-out batches of the final mixture at several row lengths."""

    batches: list[tuple[torch.Tensor, list[list[Reply]]]] = field(default_factory=list)

    @classmethod
    def build(cls, tokenizer: Path, text: Path, lengths: tuple[int, ...], tokens: int, seed: int = 1) -> "Probe":
        """Makes one batch of ``tokens`` ids for each entry of ``lengths`` that fits."""
        maker = RowMaker(Tokenizer.from_file(str(tokenizer)), make_source(seed, Split.HELD_OUT, corpus.read(text)))
        probe = cls()
        for length in (length for length in lengths if length <= tokens):
            rows, replies = maker.batch(tokens, length, STAGES[-1])
            probe.batches.append((torch.from_numpy(rows.astype("int64")), replies))
        return probe

    def run(self, model: TinyModel, quantiser: FakeQuantiser | None, device: torch.device) -> dict[str, Score]:
        """Returns scores by family, recall also by row length. Gradients stay on: compiled functions are shared."""
        scores: dict[str, Score] = defaultdict(Score)
        for batch, replies in self.batches:
            length = batch.shape[1]
            rows = Rows(batch.shape[0], length, model.shape, device)
            goal = targets(batch.flatten().to(device), rows)
            first, second = (logits.argmax(-1) for logits in predict(model, quantiser, goal, rows))
            right = (first == goal.following).view_as(batch).cpu()
            agreed = (second == torch.roll(first, -1)).view_as(batch).cpu()
            for number, row in enumerate(replies):
                for reply in row:
                    _count(scores, reply, length, right[number], agreed[number])
        return dict(sorted(scores.items()))


def _count(scores: dict[str, Score], reply: Reply, length: int, right: torch.Tensor, agreed: torch.Tensor) -> None:
    span = right[max(reply.start - 1, 0) : reply.end - 1]
    drafts = (
        agreed[max(reply.start - 1, 0) : max(reply.end - 2, 0)] & span[: max(reply.end - 1 - max(reply.start, 1), 0)]
    )
    names = [reply.family] if reply.family not in ("key-value", "needle") else [f"{reply.family} {length}"]
    for name in names:
        score = scores[name]
        score.replies += 1
        score.exact += int(bool(span.all()) and reply.family != TEXT)
        score.tokens += span.numel()
        score.right += int(span.sum())
        score.drafts += drafts.numel()
        score.accepted += int(drafts.sum())
