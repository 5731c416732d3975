"""What each form of cached keys and values costs in quality, on the embedded model: two Markdown tables.

    python -m bench.kv_dtypes [--artifact embedded:ninfer-tiny] [--device cpu] [--short 16] [--recall 512:16 1024:8 ...]

The right reply is fed after its prompt: a reply counts as exact if every token of it, and its end, was the likeliest,
so that greedy decoding would have given just it. First the short families: the mean KL divergence of the next token's
distribution from that with keys and values in float32, how often the likeliest token is the same, and exact replies,
those of copies on their own. Then recall of a fact by the length of the context: exact replies of how many, and
the divergence. ``--recall LENGTH:COUNT`` takes COUNT lists of facts and COUNT needles. Needs transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.held_out import Case, HeldOut
from kernels_numba.kv.codec import KV_CODECS, KvCodec
from kernels_numba.selection import ops_for
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import open_model
from tests.support.sequences import Runner

TEMPLATE = "embedded:ninfer-tiny-bf16"
RECALL = ("512:16", "1024:8", "2048:4", "4096:2", "8192:1", "16384:1")
CHUNK = 1024
NAMES = ("fp32", "bf16", "int8", "fp8", "k8v4", "nvfp4")
UNTURNED = {f"{name}, keys not turned": replace(KV_CODECS[name], rotates_keys=False) for name in ("fp8", "nvfp4")}


@dataclass(frozen=True)
class Reply:
    """What a model thought of the right reply to a case."""

    expected: list[int]
    log_probabilities: Tensor  # float64 [tokens, vocabulary]

    @property
    def is_exact(self) -> bool:
        return self.log_probabilities.argmax(-1).tolist() == self.expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", default="embedded:ninfer-tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of activations")
    parser.add_argument("--short", type=int, default=16, help="cases of each short family")
    parser.add_argument("--recall", nargs="*", default=RECALL, metavar="LENGTH:COUNT")
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    source, cases = open_model(artifact_path(args.artifact)), HeldOut(artifact_path(TEMPLATE))
    ops = ops_for(device, dtype)
    model = load_text(source, text_config(source), ops, device, dtype, lambda _done, _total: None)
    codecs = {name: KV_CODECS[name] for name in NAMES}
    print(f"{args.artifact}, {args.dtype} activations on {args.device}, ops: {ops.name}\n")
    short_table(model, codecs | UNTURNED, cases.short(args.short))
    counts = [each.split(":") for each in args.recall]
    recall_table(model, codecs, {int(length): cases.recall(int(length), int(count)) for length, count in counts})


def short_table(model: Qwen3_5Text, codecs: Mapping[str, KvCodec], families: Mapping[str, list[Case]]) -> None:
    labels, cases = zip(*((label, case) for label, family in families.items() for case in family), strict=True)
    expected = [replied(model, codecs["fp32"], case) for case in cases]
    print(f"{sum(len(case.reply) for case in cases)} positions in {len(cases)} held-out replies.\n")
    print("| kv_dtype | bytes a token | KL (nats) | same likeliest token | exact replies | exact copies |")
    print("|---|---|---|---|---|---|")
    for name, codec in codecs.items():
        found = [replied(model, codec, case) for case in cases]
        copies = [reply for reply, label in zip(found, labels, strict=True) if label == "copy"]
        cells = (
            name,
            str(token_bytes(model, codec)),
            f"{divergence(expected, found):.1e}",
            f"{agreement(expected, found):.2%}",
            *(f"{sum(reply.is_exact for reply in replies)} of {len(replies)}" for replies in (found, copies)),
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


def recall_table(model: Qwen3_5Text, codecs: Mapping[str, KvCodec], lengths: Mapping[int, list[Case]]) -> None:
    """A column for every length, finished one after the other so that a stopped run has shown what it found."""
    print("| recall at | " + " | ".join(codecs) + " |")
    print("|---" * (1 + len(codecs)) + "|")
    for length, cases in lengths.items():
        expected = [replied(model, codecs["fp32"], case) for case in cases]
        cells = []
        for name, codec in codecs.items():
            found = expected if name == "fp32" else [replied(model, codec, case) for case in cases]
            exact = sum(reply.is_exact for reply in found)
            cells.append(f"{exact} of {len(found)}, {divergence(expected, found):.0e}")
        print(f"| {length} | " + " | ".join(cells) + " |", flush=True)


def replied(model: Qwen3_5Text, codec: KvCodec, case: Case) -> Reply:
    runner = Runner.create(model, 1, len(case.prompt) + len(case.reply), codec)
    given = case.prompt[:-1]
    for begin in range(0, len(given), CHUNK):
        runner.step({0: given[begin : begin + CHUNK]})
    logits = runner.step({0: case.prompt[-1:] + case.reply[:-1]}, all_logits=True)
    return Reply(case.reply, logits.double().log_softmax(-1))


def divergence(expected: list[Reply], found: list[Reply]) -> float:
    """Mean over all positions of all replies."""
    one, other = (torch.cat([reply.log_probabilities for reply in replies]) for replies in (expected, found))
    return float((one.exp() * (one - other)).sum(-1).mean())


def agreement(expected: list[Reply], found: list[Reply]) -> float:
    same = [
        one.log_probabilities.argmax(-1) == other.log_probabilities.argmax(-1)
        for one, other in zip(expected, found, strict=True)
    ]
    return float(torch.cat(same).double().mean())


def token_bytes(model: Qwen3_5Text, codec: KvCodec) -> int:
    attention, layers = model.config.attention, model.config.attention_layer_count
    vectors = codec.key.vector_bytes(attention.head_dim) + codec.value.vector_bytes(attention.head_dim)
    return layers * attention.kv_heads * vectors


if __name__ == "__main__":
    main()
