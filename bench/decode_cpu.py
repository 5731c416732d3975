"""Greedy decode speed on the CPU: the engine against transformers' ``generate``, same weights, same threads, one run.

    python bench/decode_cpu.py [--artifact embedded:ninfer-tiny-bf16] [--kv-dtype fp32] [--threads 2] [--tokens 128]
                               [--rounds 3]

Both are timed as the difference between generating many tokens and one, so that prefill drops out; rounds alternate
between the two, and the best round of each counts. Needs transformers (``pip install -e .[dev]``).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from ninferd.config.schema import Settings
from ninferd.engine.build import build_engine
from ninferd.engine.engine import Engine
from ninferd.engine.messages import GenerationRequest, PromptIdentity, SamplingParams, TokensGenerated
from ninferd.weights.locate import artifact_path

STREAMS = (1, 8)
PROMPT_TOKENS = 64
AIMS = {1: 1.0, 8: 3.0}

Prompts = list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", default="embedded:ninfer-tiny-bf16")
    parser.add_argument("--kv-dtype", default="fp32", help="of the engine's cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    theirs = load_transformers(artifact_path(args.artifact))
    ours = load_engine(args.artifact, args.kv_dtype, PROMPT_TOKENS + args.tokens)
    print("streams  ninferd tok/s  transformers tok/s  ratio   aim  same tokens")
    for streams in STREAMS:
        compare(ours, theirs, streams, args.tokens, args.rounds)


def load_transformers(directory: Path) -> Any:
    """The model in float32, which never stops by itself."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model


def load_engine(artifact: str, kv_dtype: str, context_tokens: int) -> Engine:
    """The engine as the daemon builds it, with activations in float32 and room for all streams."""
    engine = {
        "device": "cpu",
        "kv_dtype": kv_dtype,
        "max_context": context_tokens,
        "kv_capacity": max(STREAMS) * (context_tokens + 64),
        "max_concurrency": max(STREAMS),
    }
    return build_engine(Settings.model_validate({"model": {"artifact": artifact}, "engine": engine}), lambda _: None)


def compare(ours: Engine, theirs: Any, streams: int, tokens: int, rounds: int) -> None:
    """Print one row of the table."""
    vocab_size = ours.info.vocab_size
    prompts = [[(7 * i + 31 * stream + 3) % vocab_size for i in range(PROMPT_TOKENS)] for stream in range(streams)]
    our_seconds, their_seconds = [], []
    for _ in range(rounds):
        our_seconds.append(run_engine(ours, prompts, tokens)[0] - run_engine(ours, prompts, 1)[0])
        their_seconds.append(run_transformers(theirs, prompts, tokens)[0] - run_transformers(theirs, prompts, 1)[0])
    same = run_engine(ours, prompts, tokens)[1] == run_transformers(theirs, prompts, tokens)[1]
    decoded = streams * (tokens - 1)
    ours_rate, their_rate = decoded / min(our_seconds), decoded / min(their_seconds)
    print(
        f"{streams:7d}  {ours_rate:13.0f}  {their_rate:18.0f}  {ours_rate / their_rate:4.1f}x  "
        f"{AIMS[streams]:3.0f}x  {'yes' if same else 'no'}"
    )


def run_engine(engine: Engine, prompts: Prompts, tokens: int) -> tuple[float, Prompts]:
    """Seconds, and the tokens of every stream."""
    generated: dict[str, list[int]] = {str(stream): [] for stream in range(len(prompts))}
    started = time.perf_counter()
    for stream, prompt in enumerate(prompts):
        identity = PromptIdentity.from_token_ids(prompt)
        engine.submit(GenerationRequest(str(stream), identity, SamplingParams(seed=0, temperature=0.0), tokens, ()))
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokensGenerated):
                generated[event.request_id] += event.token_ids
    return time.perf_counter() - started, list(generated.values())


def run_transformers(model: Any, prompts: Prompts, tokens: int) -> tuple[float, Prompts]:
    """Seconds, and the tokens of every stream."""
    ids = torch.tensor(prompts)
    started = time.perf_counter()
    with torch.inference_mode():
        result = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens)
    return time.perf_counter() - started, result[:, PROMPT_TOKENS:].tolist()


if __name__ == "__main__":
    main()
