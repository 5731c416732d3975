"""Start the daemon in the foreground, ask it one question over HTTP as any client would, then keep serving."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

QUESTION = "What is the capital of France?"


def wait_until_ready(base_url: str, daemon: subprocess.Popen[bytes], timeout_s: float = 600) -> None:
    """Poll ``/health`` until it answers 200; the daemon's own exit ends the wait."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (status := daemon.poll()) is not None:
            raise SystemExit(status or 1)
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(f"{base_url}/health"):
            return
        time.sleep(0.1)
    raise SystemExit(f"the daemon was not ready after {timeout_s:.0f} s")


def stream_answer(base_url: str, question: str) -> Iterator[str]:
    """Text of the reply to one user message, as it arrives."""
    with urllib.request.urlopen(f"{base_url}/v1/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 128,
        "enable_thinking": False,
    }
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[len(b"data: ") :])
                if "error" in chunk:
                    raise SystemExit(f"the daemon answered with an error: {chunk['error']['message']}")
                for choice in chunk["choices"]:
                    yield choice["delta"].get("content") or ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--port", type=int, default=8080)
    args = parser.parse_args()
    base_url = f"http://127.0.0.1:{args.port}"
    with tempfile.TemporaryDirectory(prefix="ninferd-") as runtime:
        options = ["--profile", args.profile, "--port", str(args.port), "--set", f'daemon.runtime_dir="{runtime}"']
        daemon = subprocess.Popen([Path(sys.executable).with_name("ninferd"), "run", *options])

        def stop(signum: int, _frame: FrameType | None) -> None:
            daemon.send_signal(signum)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends ^C to the daemon as well
        try:
            wait_until_ready(base_url, daemon)
            answer = "".join(stream_answer(base_url, QUESTION))  # whole: the daemon logs to the same terminal
            print(f"\nYou:   {QUESTION}\nModel: {answer}\n\nServing on {base_url}/v1 (Ctrl-C stops it).\n", flush=True)
            return daemon.wait()
        finally:
            if daemon.poll() is None:
                daemon.terminate()
                daemon.wait()


if __name__ == "__main__":
    sys.exit(main())
