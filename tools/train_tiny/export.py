"""Converts between the training model and the Hugging Face checkpoint (bf16, ``mtp.*`` beside transformers' names)."""

import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.train_tiny.model import TinyModel

WEIGHTS = "model.safetensors"
PIECES = 2


def checkpoint(model: TinyModel, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Returns the tensors of the checkpoint; the training model already uses its names."""
    return {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}


def export(model: TinyModel, directory: Path) -> None:
    """Writes ``model.safetensors``."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = checkpoint(model)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def split(directory: Path, target: Path) -> None:
    """Copies the weights into ``PIECES`` files."""
    tensors = load_file(directory / WEIGHTS)
    names = sorted(tensors)
    size = -(-len(names) // PIECES)
    for piece in range(PIECES):
        save_file(
            {name: tensors[name] for name in names[piece * size : (piece + 1) * size]},
            target / f"piece-{piece}.safetensors",
        )


def load_weights(model: TinyModel, directory: Path) -> None:
    """Loads every ``*.safetensors`` of a directory into the model."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
    model.load_state_dict(tensors)


def deflated_size(path: Path, level: int = 6) -> int:
    """Returns the bytes of a file as packed in a wheel (deflate)."""
    return len(zlib.compress(path.read_bytes(), level))
