"""Worker processes that make training rows while the device trains."""

import multiprocessing
import os
import queue
import random
from collections import deque
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.train_tiny import corpus
from tools.train_tiny.data.base import Source, Split
from tools.train_tiny.data.mixture import Stage, draw, stage_at
from tools.train_tiny.data.rows import RowMaker, make_source

Batch = NDArray[np.uint16]
"""``[rows, length]`` ids with the learned bit."""

PREFETCH = 96
REPLAY = 512


def _work(
    seed: int,
    tokens: int,
    tokenizer: str,
    text: str,
    stages: tuple[Stage, ...],
    progress: "Synchronized[float]",
    out: "Queue[Batch]",
) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    maker = RowMaker(Tokenizer.from_file(tokenizer), make_source(seed, Split.TRAIN, corpus.read(Path(text))))
    chooser = Source(random.Random(seed))
    while True:
        stage = stage_at(stages, progress.value)
        fitting = {length: weight for length, weight in stage.lengths.items() if length <= tokens}
        length = draw(chooser, fitting)
        out.put(maker.batch(tokens, length, stage)[0])


class Loader:
    """Delivers batches of about ``tokens`` ids; when the workers fall behind, repeats one of the last 512 batches."""

    def __init__(
        self, workers: int, seed: int, tokens: int, tokenizer: Path, text: Path, stages: tuple[Stage, ...]
    ) -> None:
        """Starts the workers; fork before the device is touched."""
        context = multiprocessing.get_context("fork")
        self._progress: Synchronized[float] = context.Value("d", 0.0)
        self._queue: Queue[Batch] = context.Queue(PREFETCH)
        self._recent: deque[Batch] = deque(maxlen=REPLAY)
        self._rng = random.Random(seed)
        self.repeated = 0
        self._workers = [
            context.Process(
                target=_work,
                args=(seed * 1000 + number, tokens, str(tokenizer), str(text), stages, self._progress, self._queue),
                daemon=True,
            )
            for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    def next(self, progress: float) -> Batch:
        """Returns the next batch and tells the workers how far training is (0 to 1).

        Raises ``RuntimeError`` if a worker has died: repeating old rows for long would only overfit them.
        """
        self._progress.value = progress
        try:
            batch = self._queue.get(timeout=120.0 if len(self._recent) < PREFETCH else 0.002)
        except queue.Empty:
            if not all(worker.is_alive() for worker in self._workers):
                raise RuntimeError("a worker that makes training rows has died; its traceback is above") from None
            self.repeated += 1
            return self._recent[int(self._rng.random() * len(self._recent))]
        self._recent.append(batch)
        return batch

    def __enter__(self) -> Self:
        """Returns the running loader."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the workers."""
        for worker in self._workers:
            worker.terminate()
