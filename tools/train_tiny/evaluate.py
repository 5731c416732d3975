"""Evaluates a checkpoint directory on held-out cases: ``python -m tools.train_tiny.evaluate DIR --text FILE``.

Replies come from transformers' own ``Qwen3_5ForCausalLM`` (greedy, batched), prompts from the directory's template.
Only the MTP acceptance uses the training code, because transformers has no MTP layer.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.train_tiny import corpus
from tools.train_tiny.cases import RECALL_LENGTHS, TOOL_FAMILIES, Case, recall_cases, short_cases
from tools.train_tiny.configs import Shape
from tools.train_tiny.data.base import Source, Split, user
from tools.train_tiny.data.rows import make_source
from tools.train_tiny.export import load_weights
from tools.train_tiny.fake_quant import quantise
from tools.train_tiny.model import Rows, TinyModel
from tools.train_tiny.pointwise import CHUNK
from tools.train_tiny.special import END_OF_TEXT, IM_END
from tools.train_tiny.xml_calls import same_reply, well_formed

BATCH_TOKENS = 65536
BATCH_ROWS = 64
DRAFT_SHARE = 0.25
SPARE_TOKENS = 96
GREETINGS: tuple[str, ...] = (
    "Hello",
    "Who are you?",
    "What is the capital of France?",
    "What is 17 + 25?",
    "Tell me a joke.",
)


@dataclass
class Tally:
    """Counts of one table row."""

    cases: int = 0
    exact: int = 0
    formed: int = 0
    drafts: int = 0
    accepted: int = 0


class Evaluator:
    """A loaded checkpoint that answers cases."""

    def __init__(self, directory: Path, device: str, show_wrong: bool = False, rounded: bool = False) -> None:
        """Computes in fp32, with the weights ``rounded`` to the values that the converter stores or as they are."""
        self.show = show_wrong
        self.device = torch.device(device)
        self.dtype = torch.float32
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=self.dtype).to(self.device).eval()
        self.tiny = TinyModel(Shape(), self.dtype)
        load_weights(self.tiny, directory)
        if rounded:
            quantise(self.tiny)
            trunk = {name: value for name, value in self.tiny.state_dict().items() if not name.startswith("mtp.")}
            self.model.load_state_dict(trunk | {"lm_head.weight": trunk["model.embed_tokens.weight"]})
        self.tiny.to(self.device)

    def prompt(self, case: Case) -> list[int]:
        """Returns the prompt's ids."""
        text = self.tokenizer.apply_chat_template(
            list(case.messages),
            tools=list(case.tools) or None,
            add_generation_prompt=True,
            enable_thinking=case.thinking,
            tokenize=False,
        )
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], limit: int) -> list[list[int]]:
        """Greedy replies without the end token; prompts are padded on the left."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[END_OF_TEXT] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self.model.generate(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            max_new_tokens=limit,
            do_sample=False,
            top_k=None,
            top_p=None,
            temperature=None,
            eos_token_id=[IM_END, END_OF_TEXT],
            pad_token_id=END_OF_TEXT,
        )
        replies = []
        for row in out[:, width:].tolist():
            ends = [place for place, token in enumerate(row) if token in (IM_END, END_OF_TEXT)]
            replies.append(row[: ends[0] if ends else len(row)])
        return replies

    @torch.no_grad()
    def acceptance(self, prompt: list[int], reply: list[int]) -> tuple[int, int]:
        """Returns (first drafts made, first drafts accepted) over a reply and its end token."""
        tokens = [*prompt, *reply, IM_END]
        padded = tokens + [END_OF_TEXT] * (-len(tokens) % CHUNK)
        ids = torch.tensor(padded, device=self.device)
        hidden: Tensor = self.model.model(input_ids=ids[None]).last_hidden_state[0]
        rows = Rows(1, len(padded), self.tiny.shape, self.device)
        drafts = self.tiny.logits(self.tiny.draft(hidden, torch.roll(ids, -1), rows)).argmax(-1)
        first = len(prompt) - 1
        made = len(tokens) - 2 - first
        return made, int((drafts[first : first + made] == ids[first + 2 : first + 2 + made]).sum())

    def text(self, reply: list[int]) -> str:
        """Returns the reply's text after its reasoning block."""
        text: str = self.tokenizer.decode(reply, skip_special_tokens=False)
        return text.split("</think>\n\n")[-1]

    def run(self, cases: list[Case], draft_share: float) -> Tally:
        """Answers the cases of one table row in batches of similar prompt length."""
        tally = Tally()
        pending = sorted(((self.prompt(case), case) for case in cases), key=lambda item: len(item[0]))
        while pending:
            width = len(pending[min(len(pending), BATCH_ROWS) - 1][0])
            size = max(1, min(BATCH_ROWS, BATCH_TOKENS // width))
            batch, pending = pending[:size], pending[size:]
            longest = max(len(self.tokenizer(case.reference)["input_ids"]) for _, case in batch)
            limit = longest + 8 + (SPARE_TOKENS if any(case.thinking for _, case in batch) else 0)
            replies = self.generate([prompt for prompt, _ in batch], limit)
            for number, ((prompt, case), reply) in enumerate(zip(batch, replies, strict=True)):
                text = self.text(reply)
                tally.cases += 1
                exact = same_reply(text, case.reference)
                tally.exact += exact
                tally.formed += well_formed(text, case.tools)
                if self.show and not exact:
                    print(
                        f"--- {case.messages[-1]['content'][-300:]}\nright: {case.reference}\nreply: {text}", flush=True
                    )
                if number < draft_share * size:
                    made, accepted = self.acceptance(prompt, reply)
                    tally.drafts += made
                    tally.accepted += accepted
        return tally


def table_row(label: str, tally: Tally) -> str:
    """Returns one printed row."""
    formed = f"{100 * tally.formed / tally.cases:9.1f}" if label.startswith(TOOL_FAMILIES) else f"{'':9s}"
    accepted = f"{100 * tally.accepted / tally.drafts:8.1f}" if tally.drafts else ""
    return f"{label:26s} {tally.cases:5d} {100 * tally.exact / tally.cases:8.1f} {formed} {accepted}"


def build_rows(evaluator: Evaluator, source: Source, count: int, longest: int) -> Iterator[tuple[str, list[Case]]]:
    """Yields (label, held-out cases) of every table row: all families without and with thinking, recall by length.

    Beyond 2048 tokens there are fewer cases the longer they are.
    """
    for thinking in (False, True):
        yield from short_cases(source, count, thinking).items()
    for length in (length for length in RECALL_LENGTHS if length <= longest):
        number = max(2, count * 2048 // max(length, 2048))
        yield from recall_cases(source, lambda case: len(evaluator.prompt(case)), length, number).items()


def show_greetings(evaluator: Evaluator) -> None:
    """Prints a few fixed conversations."""
    for thinking in (False, True):
        cases = [Case((user(text),), (), thinking, "") for text in GREETINGS]
        for case, reply in zip(cases, evaluator.generate([evaluator.prompt(case) for case in cases], 120), strict=True):
            print(f"> {case.messages[0]['content']}\n{evaluator.tokenizer.decode(reply)}\n", flush=True)


def main() -> None:
    """Prints a few fixed conversations (unless ``--only`` asks for some rows), then the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--text", type=Path, help="file written by tools.train_tiny.corpus; random words fill in without it"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=100, help="cases of a row")
    parser.add_argument("--longest", type=int, default=RECALL_LENGTHS[-1], help="longest recall context")
    parser.add_argument("--quick", action="store_true", help="eight cases a row, recall up to 1024 tokens")
    parser.add_argument("--only", default="", help="evaluate only the rows whose label starts with this")
    parser.add_argument("--nvfp4", action="store_true", help="weights as the converter stores them: NVFP4 and Q8")
    parser.add_argument("--show-wrong", action="store_true", help="print every wrong reply")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    source = make_source(arguments.seed, Split.HELD_OUT, corpus.read(arguments.text) if arguments.text else [])
    evaluator = Evaluator(arguments.directory, arguments.device, arguments.show_wrong, arguments.nvfp4)
    if not arguments.only:
        show_greetings(evaluator)
    count, longest = (8, 1024) if arguments.quick else (arguments.count, arguments.longest)
    print(f"{'family':26s} {'n':>5s} {'exact %':>8s} {'formed %':>9s} {'draft %':>8s}", flush=True)
    total = Tally()
    for label, cases in build_rows(evaluator, source, count, longest):
        if not label.startswith(arguments.only):
            continue
        tally = evaluator.run(cases, DRAFT_SHARE)
        print(table_row(label, tally), flush=True)
        total.drafts += tally.drafts
        total.accepted += tally.accepted
    print(
        f"first MTP draft accepted over all rows: {100 * total.accepted / max(total.drafts, 1):.1f} % of {total.drafts}"
    )


if __name__ == "__main__":
    main()
