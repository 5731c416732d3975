"""Trains the byte-level BPE tokenizer of ``ninfer-tiny`` and writes its Hugging Face files."""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tools.train_tiny import corpus
from tools.train_tiny.data.samples import tokenizer_samples
from tools.train_tiny.special import BASE_VOCAB_SIZE, SPECIAL_IDS, SPECIAL_TOKENS, VISIBLE_TOKENS

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pre-tokenisation of the family (transformers ``tokenization_qwen3_5``): one digit per token, marks join letters."""

CORPUS_BYTES = 2_500_000


def train(texts: Iterator[str]) -> Tokenizer:
    """Trains the BPE and appends the control tokens at ids 4063 to 4095."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_VOCAB_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != BASE_VOCAB_SIZE:
        raise ValueError(f"the corpus yields only {tokenizer.get_vocab_size()} of {BASE_VOCAB_SIZE} tokens")
    tokenizer.add_tokens(
        [AddedToken(text, special=text not in VISIBLE_TOKENS, normalized=False) for text in SPECIAL_TOKENS]
    )
    return tokenizer


def training_texts(documents: list[str], seed: int = 0) -> Iterator[str]:
    """Yields running text, then sample conversations of every synthetic family without their control tokens."""
    rng = random.Random(seed)
    size = 0
    for document in rng.sample(documents, len(documents)):
        size += len(document)
        if size > CORPUS_BYTES:
            break
        yield document
    for sample in tokenizer_samples(seed):
        for token in SPECIAL_TOKENS:
            sample = sample.replace(token, "")
        yield sample


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json``; the template stays in ``chat_template.jinja``."""
    tokenizer.save(str(directory / "tokenizer.json"))
    added = {
        str(number): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": text not in VISIBLE_TOKENS,
        }
        for text, number in SPECIAL_IDS.items()
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    """Command line: ``python -m tools.train_tiny.tokenizer --corpus FILE --out DIR``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write(train(training_texts(corpus.read(arguments.corpus))), arguments.out)


if __name__ == "__main__":
    main()
