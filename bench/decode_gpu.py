"""Decode speed of an engine on a GPU, with and without CUDA graphs, against what reading its bytes alone would take.

    python bench/decode_gpu.py PATH [--lanes 1 2 4 8] [--rounds 48] [--prompt 256]

PATH is a .ninfer file or a Hugging Face directory. The engine is the one the daemon builds, in bfloat16. A round is one
``Engine.step`` in which every lane decodes one token: ``step`` is the median of its wall time, events and all;
``device`` is that of its device part alone, repeated without a look at its result. The ceiling is read in the same
run, and the roof of a round is its weights (all but the embedding) at that rate; ``roof+caches`` adds the keys and
values of the contexts, and the recurrent states, read and written. ``sampled`` is temperature 0.7, top-p 0.8, top-k 20.

Needs msgspec, pydantic, pydantic-settings and what they need, beside torch, numpy and numba.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from ninferd.config.schema import Settings
from ninferd.engine.build import build_engine
from ninferd.engine.engine import Engine
from ninferd.engine.graphs import RoundShape
from ninferd.engine.messages import GenerationRequest, PromptIdentity, SamplingParams

WARM_ROUNDS: Final = 6  # the first of a width is observed, the second captured
DEVICE_ROUNDS: Final = 16
CEILING_BYTES: Final = 4 << 30
SAMPLINGS: Final = {
    "greedy": SamplingParams(seed=0, temperature=0.0),
    "sampled": SamplingParams(seed=0, temperature=0.7, top_p=0.8, top_k=20),
}
GB: Final = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="  %(name)s: %(message)s")
    ceiling, how = read_ceiling()
    print(f"{torch.cuda.get_device_name()}: {ceiling / GB:.0f} GB/s read by {how}")
    for graphs in (True, False):
        engine = load_engine(args.path, args.prompt + args.rounds + 64, max(args.lanes), graphs)
        if graphs:
            weights = round_bytes(engine)
            print(
                f"{args.path.name}: {engine.info.weights_bytes / GB:.2f} GB of weights, {weights / GB:.2f} GB a round"
            )
            print("graphs sampling lanes   tok/s  step ms  device ms  roof ms  of roof  roof+caches  of it")
        for sampling in SAMPLINGS:
            for lanes in args.lanes:
                report(engine, graphs, sampling, lanes, args.prompt, args.rounds, ceiling)
        stats = engine.stats()
        if graphs:
            print(f"{len(stats.graphs)} CUDA graphs hold {stats.graph_bytes / (1 << 20):.1f} MiB")
        del engine
        gc.collect()
        torch.cuda.empty_cache()


def load_engine(path: Path, context_tokens: int, lanes: int, graphs: bool) -> Engine:
    engine = {
        "device": 0,
        "dtype": "bfloat16",
        "cuda_graph": graphs,
        "max_context": context_tokens,
        "kv_capacity": lanes * (context_tokens + 64),
        "max_concurrency": lanes,
    }
    started = time.perf_counter()
    settings = Settings.model_validate({"model": {"artifact": str(path)}, "engine": engine})
    built = build_engine(settings, lambda _: None)
    print(f"loaded and probed in {time.perf_counter() - started:.1f} s, CUDA graphs {'on' if graphs else 'off'}")
    return built


def report(
    engine: Engine, graphs: bool, sampling: str, lanes: int, prompt_tokens: int, rounds: int, ceiling: float
) -> None:
    """Print one row of the table."""
    for lane in range(lanes):
        ids = [(7 * index + 31 * lane + 3) % engine.info.vocab_size for index in range(prompt_tokens)]
        tokens = WARM_ROUNDS + rounds + lanes + 8
        prompt = PromptIdentity.from_token_ids(ids)
        engine.submit(GenerationRequest(str(lane), prompt, SAMPLINGS[sampling], tokens, ()))
    while engine.stats().decoding < lanes:
        engine.step()
    for _ in range(WARM_ROUNDS):
        engine.step()
    step_s = statistics.median(timed(engine.step) for _ in range(rounds))
    device_s = device_seconds(engine, RoundShape(lanes, sampling == "sampled"))
    engine.cancel_all()
    while engine.has_work:
        engine.step()
    weights = round_bytes(engine) / ceiling
    caches = lanes * lane_bytes(engine, prompt_tokens + rounds // 2) / ceiling
    print(
        f"{'yes' if graphs else 'no':6} {sampling:8} {lanes:5} {lanes / step_s:7.0f} {step_s * 1e3:8.3f} "
        f"{device_s * 1e3:10.3f} {weights * 1e3:8.3f} {weights / step_s:8.1%} {(weights + caches) * 1e3:12.3f} "
        f"{(weights + caches) / step_s:6.1%}",
        flush=True,
    )


def timed(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@torch.inference_mode()
def device_seconds(engine: Engine, shape: RoundShape) -> float:
    """Seconds of one round, as the last one was loaded: it writes the same positions again."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    engine._rounds(shape)
    begin.record()
    for _ in range(DEVICE_ROUNDS):
        engine._rounds(shape)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / DEVICE_ROUNDS


def round_bytes(engine: Engine) -> int:
    """Weights that every round reads; of an embedding that is not the head too, it reads a few rows."""
    weights: Any = engine._model._weights  # type: ignore[attr-defined]
    shared = any(segment is weights.embedding for segment in weights.head.segments)
    return engine.info.weights_bytes - (0 if shared else weights.embedding.size_bytes)


def lane_bytes(engine: Engine, context_tokens: int) -> int:
    """Of one lane: keys and values read, state read and written."""
    info = engine.info
    kv = info.kv_bytes // info.kv_capacity_tokens * context_tokens
    return kv + 2 * info.state_bytes // info.state_slots


def read_ceiling() -> tuple[float, str]:
    """Bytes a second, and by what: our kernel that only reads, else torch's copy, which counts both ways."""
    source = torch.randint(0, 255, (CEILING_BYTES,), dtype=torch.uint8, device="cuda")
    try:
        from kernels_numba.nvidia.launch import device_of
        from kernels_numba.nvidia.stream_read import CHUNK_BYTES

        device = device_of(source.device)
        kernel = device.kernel("stream_read")
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        grid = (2 * device.multiprocessors, 1, 1)
        arguments = (source.data_ptr(), out.data_ptr(), CEILING_BYTES // CHUNK_BYTES)
        return CEILING_BYTES / best_seconds(lambda: kernel(grid, *arguments)), "kernel stream_read"
    except Exception as error:  # whatever is missing; the copy needs nothing
        print(f"stream_read: {type(error).__name__}: {error}")
    target = torch.empty_like(source)
    return 2 * CEILING_BYTES / best_seconds(lambda: target.copy_(source)), "torch's copy, both ways"


def best_seconds(call: Callable[[], Any], times: int = 10) -> float:
    seconds = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(float(begin.elapsed_time(end)) / 1e3)
    return min(seconds)


if __name__ == "__main__":
    main()
