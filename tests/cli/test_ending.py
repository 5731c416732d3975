"""Signals from outside while an artifact is written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ENDED_WHILE_WRITING = """
import os, signal, sys
from ninferd.cli import main
from ninferd.weights.artifact.writer import ArtifactWriter

number, how, *arguments = sys.argv[1:]
signal.signal(int(number), signal.SIG_IGN if how == "ignored" else signal.SIG_DFL)
write_at = ArtifactWriter.write_at

def ended(self, offset, data):
    write_at(self, offset, data)
    if offset > 1_000_000:
        print("begun:", *sorted(os.listdir(os.path.dirname(arguments[3]))), flush=True)
        ArtifactWriter.write_at = write_at
        os.kill(os.getpid(), int(number))

ArtifactWriter.write_at = ended
sys.exit(main(arguments))
"""
COMMANDS = {
    "convert": ["model", "convert", "embedded:ninfer-tiny-bf16", "DST", "--recipe", "bf16"],
    "synth": ["model", "synth", "SRC", "DST", "--recipe", "bf16"],
}


def ended(command: str, number: signal.Signals, how: str, path: Path) -> subprocess.CompletedProcess[str]:
    places = {"DST": str(path), "SRC": str(ROOT / "ninferd" / "assets" / "ninfer_tiny")}
    arguments = [places.get(each, each) for each in COMMANDS[command]]
    program = [sys.executable, "-c", ENDED_WHILE_WRITING, str(int(number)), how, *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(command: str, number: signal.Signals, tmp_path: Path) -> None:
    result = ended(command, number, "default", tmp_path / "m.ninfer")
    assert result.stdout == "begun: .m.ninfer.partial\n"
    assert result.returncode == 128 + number
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    result = ended("convert", signal.SIGHUP, "ignored", tmp_path / "m.ninfer")
    assert result.returncode == 0
    assert (tmp_path / "m.ninfer").is_file()
