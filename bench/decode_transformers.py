"""ninferd against Hugging Face transformers: decode of one stream and prefill, same geometry, same device, one run.

    python -m bench.decode_transformers [--model synthetic:qwen3.8-27b] [--device auto] [--prompt 8192] [--tokens 32]

Theirs has random weights in bfloat16 (float32 on a CPU), their own attention and whatever of its optional kernels is
installed; ours has the model's own formats and the cache of ``--kv-dtype``. Decode is ``generate`` to many tokens less
``generate`` to one, so that the prompt drops out; prefill is one forward pass over the prompt with a cache. Both models
are on the device together: a 27B takes 54 GB beside ours. Needs transformers.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
import transformers

from ninferd.benchmarks.ceilings import Ceilings, measure_ceilings
from ninferd.benchmarks.decode import DecodeFigure, DecodeOptions, measure_decode
from ninferd.benchmarks.prefill import PrefillFigure, PrefillOptions, measure_prefill
from ninferd.benchmarks.roofs import prefill_flops
from ninferd.benchmarks.subject import Subject, load_subject, open_source
from ninferd.benchmarks.timing import elapsed_s, synchronize
from ninferd.engine.build import resolve_device

REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="synthetic:qwen3.8-27b")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--chunk", type=int, default=2048)
    args = parser.parse_args()
    device = resolve_device(int(args.device) if args.device.isdecimal() else args.device)
    ceilings = measure_ceilings(device)
    print(*ceilings.lines(), sep="\n", flush=True)
    subject = load_subject(args.model, args.device, lambda _done, _total: None)
    our_decode, our_prefill = ours(subject, ceilings, args)
    print(f"ninferd: decode {our_decode:.1f} tok/s, prefill {our_prefill:.0f} tok/s", flush=True)
    theirs = transformers_model(args.model, device)
    size = sum(parameter.nbytes for parameter in theirs.parameters())
    print(f"transformers {transformers.__version__}: {size / 1e9:.2f} GB of weights", flush=True)
    ids = torch.arange(args.prompt, device=device)[None] * 7 % subject.token_count
    their_prefill = args.prompt / statistics.median([prefill_seconds(theirs, ids) for _ in range(REPEATS)])
    their_decode = (args.tokens - 1) / (generate_seconds(theirs, ids, args.tokens) - generate_seconds(theirs, ids, 1))
    flops = prefill_flops(subject.model.config, args.prompt) / args.prompt * their_prefill
    print(
        f"transformers: decode {their_decode:.1f} tok/s, {their_decode * size / ceilings.read_bytes_per_s:.0%} of "
        f"reading its weights; prefill {their_prefill:.0f} tok/s, {flops / ceilings.gemm_flop_per_s:.0%} of products"
    )
    print(
        f"ninferd / transformers at {args.prompt} tokens: decode {our_decode / their_decode:.1f}x, "
        f"prefill {our_prefill / their_prefill:.2f}x"
    )


def ours(subject: Subject, ceilings: Ceilings, args: argparse.Namespace) -> tuple[float, float]:
    """Tokens a second of one lane, and of the prompt."""
    decode_options = DecodeOptions(
        (1,), (1,), (args.prompt,), (args.kv_dtype,), args.tokens, sampled=False, graphs=True
    )
    (decode,) = measure_decode(subject, decode_options, ceilings)
    (prefill,) = measure_prefill(subject, PrefillOptions((args.prompt,), (args.chunk,), (args.kv_dtype,)), ceilings)
    assert isinstance(decode, DecodeFigure), decode
    assert isinstance(prefill, PrefillFigure), prefill
    for figure in (decode, prefill):
        print(figure.heading(), figure.line(), sep="\n")
    return decode.tokens_per_s, prefill.tokens_per_s


def transformers_model(artifact: str, device: torch.device) -> Any:
    """Of the same geometry, made on the device; it never stops by itself."""
    found = open_source(artifact, torch.device("cpu")).config
    text = dict(found.get("text_config", found))
    config = transformers.AutoConfig.for_model(text.pop("model_type"), **text)
    with torch.device(device):
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval()


@torch.inference_mode()
def prefill_seconds(model: Any, ids: torch.Tensor) -> float:
    """Of one forward pass to the logits of the last token."""

    def run() -> None:
        model(ids, use_cache=True, logits_to_keep=1)
        synchronize(ids.device)

    synchronize(ids.device)
    return elapsed_s(run)


@torch.inference_mode()
def generate_seconds(model: Any, ids: torch.Tensor, tokens: int) -> float:
    """The best of a few, from the prompt on."""

    def run() -> None:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens)
        synchronize(ids.device)

    return min(elapsed_s(run) for _ in range(2))


if __name__ == "__main__":
    main()
