"""The unit as an operator installs and drives it, inside the sandbox."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.daemon.http_client import WAIT_S, ChatClient
from tests.daemon.process import NINFERD, endless_model, only_child

REPOSITORY = Path(__file__).parents[2]
UNIT_DIRECTORY = Path("/etc/systemd/system")
CONFIG = Path("/etc/ninfer/ninferd.toml")
DROP_IN = Path("/etc/ninfer/conf.d/50-test.toml")
MODEL = Path("/srv/endless")
PORT = 8080
HIDDEN_BY = {"ProtectHome": ("/root", "/home", "/run/user"), "PrivateTmp": ("/tmp", "/var/tmp")}


class Service(ChatClient):
    """``ninferd.service``. ``watchdog_s`` shortens the unit's own WatchdogSec."""

    def __init__(self, watchdog_s: int = 30) -> None:
        super().__init__(PORT, model=MODEL.name)
        endless_model(MODEL)
        for kind in ("sysusers", "tmpfiles"):
            arguments = ["--create"] if kind == "tmpfiles" else []
            run(f"systemd-{kind}", *arguments, str(REPOSITORY / "systemd" / f"{kind}.d" / "ninferd.conf"))
        CONFIG.write_text(f'[model]\nartifact = "{MODEL}"\n[engine]\nmax_concurrency = 2\n')
        unit = (REPOSITORY / "systemd" / "ninferd.service").read_text()
        (UNIT_DIRECTORY / "ninferd.service").write_text(unit)
        drop_in = UNIT_DIRECTORY / "ninferd.service.d" / "test.conf"
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(
            f"[Service]\nExecStart=\nExecStart={NINFERD} run\nWatchdogSec={watchdog_s}\nRestartSec=100ms\n"
            "Environment=OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1\n" + _let_python_run() + _share_compiled_kernels()
        )
        self.systemctl("daemon-reload")

    def systemctl(self, *arguments: str, check: bool = True) -> int:
        """Run systemctl on the unit (daemon-reload: on the manager)."""
        unit = [] if arguments[0] == "daemon-reload" else ["ninferd.service"]
        return run("systemctl", *arguments, *unit, check=check)

    def start(self) -> None:
        """Returns once the unit is ready."""
        self.systemctl("start")

    def show(self, name: str) -> str:
        """One property of the unit."""
        return output("systemctl", "show", "--property", name, "--value", "ninferd.service")

    @property
    def main_pid(self) -> int:
        return int(self.show("MainPID"))

    @property
    def child_pid(self) -> int:
        return only_child(self.main_pid)

    def journal(self, *arguments: str) -> list[str]:
        """Messages of the unit so far."""
        return output("journalctl", "--unit=ninferd", "--output=cat", *arguments).splitlines()

    def wait_journal(self, text: str, times: int = 1) -> str:
        """Follow the journal until ``text`` was in it so many times; that line."""
        follow = ["journalctl", "--unit=ninferd", "--output=cat", "--lines=all", "--follow"]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as process:
            timer = threading.Timer(WAIT_S, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    times -= text in line
                    if times == 0:
                        return line.rstrip("\n")
            finally:
                timer.cancel()
                process.kill()
        raise AssertionError(f"not in the journal: {text!r}\n" + "\n".join(self.journal()))


def run(*command: str, check: bool = True) -> int:
    """Exit status; its output is shown if the test fails."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=check).returncode


def output(*command: str) -> str:
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True).stdout.strip()


def _let_python_run() -> str:
    """A checkout and its interpreter may live where a service cannot look; an installed one does not."""
    places = [Path(place).resolve() for place in (sys.base_prefix, sys.prefix, REPOSITORY)]
    for folder in {folder for place in places for folder in (place, *place.parents)}:
        folder.chmod(folder.stat().st_mode | 0o011)  # in the throw-away overlay
    needed = [option for option, hidden in HIDDEN_BY.items() if any(str(place).startswith(hidden) for place in places)]
    return "".join(f"{option}=no\n" for option in needed)


def _share_compiled_kernels() -> str:
    """Let the unit use the kernels that this checkout has already compiled; the sandbox starts with an empty cache."""
    kernels = REPOSITORY / "kernels_numba"
    for folder in kernels.rglob("__pycache__"):
        folder.chmod(0o777)
    return f"UnsetEnvironment=NUMBA_CACHE_DIR\nReadWritePaths={kernels}\n"
