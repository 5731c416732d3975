"""One optimisation step, and its capture as one CUDA graph per row length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tools.train_tiny import pointwise
from tools.train_tiny.data.rows import LEARNED
from tools.train_tiny.fake_quant import FakeQuantiser
from tools.train_tiny.model import Rows, TinyModel

WARMUP_RUNS = 3


@dataclass(frozen=True)
class Losses:
    """Mean cross-entropies of a batch: next token, and the draft layer's token after next."""

    main: Tensor
    draft: Tensor


@dataclass(frozen=True)
class Targets:
    """A batch split into inputs and targets, all ``[T]``: ids, next ids, the ids after those, their loss weights."""

    tokens: Tensor
    following: Tensor
    second: Tensor
    weight: Tensor
    second_weight: Tensor


def targets(packed: Tensor, rows: Rows) -> Targets:
    """Unpacks ``[T]`` int64 ids with the learned bit; nothing is predicted across the end of a row."""
    tokens, learned = packed & (LEARNED - 1), (packed >= LEARNED).float()
    weight = torch.roll(learned, -1) * (rows.history < rows.length - 1)
    second_weight = torch.roll(learned, -2) * (rows.history < rows.length - 2)
    return Targets(tokens, torch.roll(tokens, -1), torch.roll(tokens, -2), weight, second_weight)


def predict(model: TinyModel, quantiser: FakeQuantiser | None, goal: Targets, rows: Rows) -> tuple[Tensor, Tensor]:
    """Returns the logits of trunk and draft layer on a batch, with rounded weights if there is a ``quantiser``."""
    weights = quantiser(model) if quantiser else {}
    logits: tuple[Tensor, Tensor] = functional_call(model, weights, (goal.tokens, goal.following, rows))
    return logits


def compute_losses(model: TinyModel, quantiser: FakeQuantiser | None, packed: Tensor, rows: Rows) -> Losses:
    """Runs the trunk and the draft layer on a batch ``[T]``."""
    goal = targets(packed, rows)
    first, second = predict(model, quantiser, goal, rows)
    main = pointwise.weighted_loss(first, goal.following, goal.weight)
    draft = pointwise.weighted_loss(second, goal.second, goal.second_weight)
    return Losses(main, draft)


def make_optimizer(model: nn.Module, rate: Tensor, decay: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; ``rate`` is a device scalar that the caller refills."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    on_device = rate.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=on_device, capturable=on_device)


class Trainer:
    """Holds the model and optimiser and runs steps; on CUDA each row length replays its own graph."""

    def __init__(
        self,
        model: TinyModel,
        optimizer: torch.optim.Optimizer,
        draft_weight: float,
        quantiser: FakeQuantiser | None = None,
        clip: float = 1.0,
    ) -> None:
        """``draft_weight`` scales the draft layer's loss; with a ``quantiser`` the steps see rounded weights."""
        self.model, self.optimizer, self.draft_weight, self.clip = model, optimizer, draft_weight, clip
        self.quantiser = quantiser
        self.device = next(model.parameters()).device
        self.rows: dict[int, Rows] = {}
        self._graphs: dict[int, Callable[[], None]] = {}
        self._packed: Tensor | None = None
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.losses = Losses(torch.zeros((), device=self.device), torch.zeros((), device=self.device))

    def _step(self, packed: Tensor, rows: Rows) -> None:
        losses = compute_losses(self.model, self.quantiser, packed, rows)
        (losses.main + self.draft_weight * losses.draft).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.losses.main.copy_(losses.main.detach())
        self.losses.draft.copy_(losses.draft.detach())

    def geometry(self, rows: int, length: int) -> Rows:
        """Returns the cached tables of a batch shape."""
        if length not in self.rows:
            self.rows[length] = Rows(rows, length, self.model.shape, self.device)
        return self.rows[length]

    def _capture(self, packed: Tensor, rows: Rows) -> Callable[[], None]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_RUNS):
                self._step(packed, rows)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(packed, rows)
        return graph.replay

    def step(self, batch: Tensor) -> None:
        """Takes one step on ``batch [rows, length]`` int64 host ids; losses appear in ``self.losses``."""
        rows = self.geometry(*batch.shape)
        if self.device.type != "cuda":
            self._step(batch.flatten(), rows)
            return
        if self._packed is None:
            self._packed = torch.empty(batch.numel(), dtype=torch.int64, device=self.device)
        self._packed.copy_(batch.flatten().pin_memory(), non_blocking=True)
        if rows.length not in self._graphs:
            self._graphs[rows.length] = self._capture(self._packed, rows)
        self._graphs[rows.length]()
