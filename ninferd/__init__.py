"""ninferd: an inference daemon for the Qwen3.5 hybrid family on one GPU."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ninferd")
except PackageNotFoundError:
    __version__ = "0.0.0+source"
