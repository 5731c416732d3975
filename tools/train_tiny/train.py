"""Trains ``ninfer-tiny``: ``python -m tools.train_tiny.train --text FILE --state FILE --total 1200 --run 530``.

Training is planned in seconds of device time; a run stops after ``--run`` seconds and writes its state, and the next
one goes on from there. ``--init`` starts from trained weights instead and refines them: a curriculum without the easy
beginning. ``--nvfp4`` trains weights that keep their quality when the converter stores them as NVFP4 and Q8.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch

from tools.train_tiny import pointwise
from tools.train_tiny.batches import Loader
from tools.train_tiny.configs import Shape
from tools.train_tiny.data.mixture import REFINING, STAGES
from tools.train_tiny.export import export, load_weights, split
from tools.train_tiny.fake_quant import FakeQuantiser
from tools.train_tiny.model import TinyModel
from tools.train_tiny.probe import Probe
from tools.train_tiny.step import Trainer, make_optimizer

WARMUP_STEPS = 300
REPORT_EVERY = 10.0
PROBE_LENGTHS = (512, 1024, 1024, 2048, 4096, 8192, 16384, 16384)


def learning_rate(step: int, progress: float, peak: float) -> float:
    """Linear warm-up, then a cosine of the planned time down to 1 % of the peak."""
    return (
        peak
        * min(1.0, (step + 1) / WARMUP_STEPS)
        * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))))
    )


def parse() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets", type=Path, default=Path("ninferd/assets/ninfer_tiny"))
    parser.add_argument("--text", type=Path, required=True, help="file written by tools.train_tiny.corpus")
    parser.add_argument("--state", type=Path, required=True, help="full training state, read if it exists")
    parser.add_argument("--init", type=Path, help="directory with model.safetensors to refine; a state goes before it")
    parser.add_argument("--out", type=Path, required=True, help="directory that receives model.safetensors at the end")
    parser.add_argument("--pieces", type=Path, help="directory that receives the weights in two files")
    parser.add_argument("--total", type=float, default=1200.0, help="planned training seconds over all runs")
    parser.add_argument("--run", type=float, default=530.0, help="seconds of this run, start-up included")
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of a step")
    parser.add_argument("--peak", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--decay", type=float, default=0.02, help="weight decay")
    parser.add_argument("--draft-weight", type=float, default=0.25, help="weight of the MTP loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--probe-every", type=float, default=90.0, help="seconds between held-out measurements")
    parser.add_argument("--save-every", type=float, default=150.0, help="seconds between saved states")
    parser.add_argument("--nvfp4", action="store_true", help="compute with the weights as the converter stores them")
    parser.add_argument("--compile", action="store_true", help="compile the element-wise functions")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def show_probe(probe: Probe, trainer: Trainer) -> None:
    """Prints the held-out table."""
    for name, score in probe.run(trainer.model, trainer.quantiser, trainer.device).items():
        print(f"    {name:18s} {score.line()}", flush=True)


class Run:
    """One run of the training: where it stands, and how it reports and saves."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Reads the state that an earlier run left, if any."""
        self.arguments = arguments
        path = arguments.state
        self.state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu") if path.exists() else {}
        self.seconds: float = self.state.get("seconds", 0.0)
        self.step: int = self.state.get("step", 0)
        self.tokens: int = self.state.get("tokens", 0)
        self._mark = (time.monotonic(), self.step)

    @property
    def progress(self) -> float:
        """Share of the planned time that is done."""
        total: float = self.arguments.total
        return self.seconds / total

    def prepare(self) -> Trainer:
        """Builds model and optimiser and fills them from the state or from given weights."""
        torch.manual_seed(self.arguments.seed)
        torch.set_float32_matmul_precision("high")
        if self.arguments.compile:
            pointwise.enable_compile()
        model = TinyModel(Shape(), torch.bfloat16).to(self.arguments.device)
        self.rate = torch.tensor(0.0, device=self.arguments.device)
        self.optimizer = make_optimizer(model, self.rate, self.arguments.decay)
        if self.state:
            model.load_state_dict(self.state["model"])
            self.optimizer.load_state_dict(self.state["optimizer"])
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate
        elif self.arguments.init:
            load_weights(model, self.arguments.init)
        quantiser = FakeQuantiser(model) if self.arguments.nvfp4 else None
        return Trainer(model, self.optimizer, self.arguments.draft_weight, quantiser)

    def report(self, trainer: Trainer, length: int, repeated: int) -> None:
        """Prints one line of progress; stops the run if the loss is no longer a number."""
        main, draft = trainer.losses.main.item(), trainer.losses.draft.item()
        now, (then, step) = time.monotonic(), self._mark
        pace = 1e3 * (now - then) / max(self.step - step, 1)
        print(
            f"step {self.step} progress {self.progress:.3f} tokens {self.tokens / 1e6:.0f}M length {length} "
            f"loss {main:.3f} draft {draft:.3f} {pace:.1f} ms/step repeated {repeated}",
            flush=True,
        )
        self._mark = (now, self.step)
        if not math.isfinite(main + draft):
            raise FloatingPointError("the loss is not finite; start again from the last saved state")

    def save(self, model: TinyModel) -> None:
        """Writes the full state, the weights, and the weights in pieces."""
        state = {"model": model.state_dict(), "optimizer": self.optimizer.state_dict()}
        counts = {"seconds": self.seconds, "step": self.step, "tokens": self.tokens}
        torch.save(state | counts, self.arguments.state)
        export(model, self.arguments.out)
        if self.arguments.pieces:
            split(self.arguments.out, self.arguments.pieces)
        self._mark = (time.monotonic(), self.step)


def train(run: Run, trainer: Trainer, loader: Loader, probe: Probe, until: float) -> None:
    """Takes steps until the clock shows ``until`` or the planned time is over."""
    arguments = run.arguments
    reported = probed = saved = last = time.monotonic()
    while last < until and run.progress < 1.0:
        run.rate.fill_(learning_rate(run.step, run.progress, arguments.peak))
        batch = torch.from_numpy(loader.next(run.progress).astype("int64"))
        trainer.step(batch)
        run.step, run.tokens = run.step + 1, run.tokens + batch.numel()
        now = time.monotonic()
        run.seconds, last = run.seconds + now - last, now
        if now - reported > REPORT_EVERY:
            run.report(trainer, batch.shape[1], loader.repeated)
            reported = now
        if now - saved > arguments.save_every:
            run.save(trainer.model)
            saved = last = time.monotonic()
        if now - probed > arguments.probe_every:
            show_probe(probe, trainer)
            probed = last = time.monotonic()


def main() -> None:
    """Runs until the time is over, then writes state and weights."""
    began = time.monotonic()
    arguments = parse()
    run = Run(arguments)
    tokenizer = arguments.assets / "tokenizer.json"
    stages, seed = REFINING if arguments.init else STAGES, arguments.seed + run.step
    with Loader(arguments.workers, seed, arguments.tokens, tokenizer, arguments.text, stages) as loader:
        loader.next(run.progress)
        trainer = run.prepare()
        probe = Probe.build(tokenizer, arguments.text, PROBE_LENGTHS, arguments.tokens)
        print(f"ready after {time.monotonic() - began:.0f} s, step {run.step}, {run.seconds:.0f} s trained", flush=True)
        train(run, trainer, loader, probe, began + arguments.run)
        run.save(trainer.model)
        print(f"stopped at step {run.step}, {run.tokens / 1e6:.0f}M tokens, {run.seconds:.0f} s trained", flush=True)
        show_probe(probe, trainer)


if __name__ == "__main__":
    main()
