"""Tables of the daemon itself: supervision, logs, monitor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ninferd.config.field import PathValue, Table, Texts, key

Url = Annotated[str, Field(pattern=r"^https?://\S+$")]


class DaemonSettings(Table):
    """Supervision of the engine child."""

    engine_max_restarts: int = key(
        5,
        "Restarts of the engine child within daemon.engine_restart_window_s after which the unit fails.",
        reload="live",
        unit="restarts",
        ge=0,
        le=1000,
    )
    engine_restart_window_s: int = key(
        300, "Window in which restarts are counted.", reload="live", unit="s", ge=1, le=86_400
    )
    load_timeout_s: int = key(
        1800,
        "Longest model load before the engine child is taken for hung.",
        reload="live",
        unit="s",
        ge=1,
        le=86_400,
    )
    runtime_dir: PathValue = key(
        Path("/run/ninferd"),
        "Directory of runtime files such as the effective configuration that `ninferd config diff` reads. "
        "systemd's $RUNTIME_DIRECTORY is the default where it is set.",
        reload="process",
    )


class LogSettings(Table):
    """Operational log on standard error, for the journal."""

    level: Literal["trace", "debug", "info", "warning", "error", "critical", "off"] = key(
        "info", "Least severity that is logged.", reload="live", flag="--log-level"
    )
    stats_interval_ms: int = key(
        5000,
        "Interval of throughput lines while something moves; 0 is off.",
        reload="live",
        unit="ms",
        flag="--log-stats-interval-ms",
        ge=0,
        le=86_400_000,
    )


class RequestLogSettings(Table):
    """One JSON line per request event, without any prompt or output text."""

    path: PathValue | None = key(
        None,
        "File to append to; its directory must exist. Unset: no request log.",
        reload="process",
        flag="--request-log-jsonl",
    )
    max_mib: int = key(
        0,
        "Size at which the file is rotated; 0 is never.",
        reload="live",
        unit="MiB",
        flag="--request-log-max-mib",
        ge=0,
        le=1_048_576,
    )
    keep: int = key(
        4, "Rotated files that are kept.", reload="live", unit="files", flag="--request-log-keep", ge=0, le=10_000
    )


class MonitorSettings(Table):
    """The separate monitor process, which reads the same files."""

    port: int = key(8090, "TCP port of the monitor page.", reload="process", ge=1, le=65535)
    bind: str = key("127.0.0.1", "Address of the monitor page.", reload="process", min_length=1)
    server_url: Url | None = key(None, "URL of the daemon. Unset: derived from [server].", reload="live")
    stats_url: Url | None = key(None, "URL of /stats. Unset: derived from [server].", reload="live")
    interval_s: float = key(5.0, "Polling interval.", reload="live", unit="s", ge=1, le=300)
    samples: int = key(4320, "Samples kept; 4320 of 5 s are 6 hours.", reload="live", ge=60, le=100_000)
    serve_log_max_mb: int = key(
        200,
        "Size at which a serve log that is a file is rotated; 0 is never.",
        reload="live",
        unit="MB",
        ge=0,
        le=1_048_576,
    )
    serve_log_keep: int = key(4, "Rotated serve logs that are kept.", reload="live", unit="files", ge=0, le=10_000)
    hpwr_command: Texts = key(
        (), "Command, as an argument list, that prints the 12VHPWR connector temperature. Empty: none.", reload="live"
    )
    hpwr_warn_c: int = key(
        52, "Connector temperature that is shown as a warning.", reload="live", unit="°C", ge=20, le=110
    )
    hpwr_crit_c: int = key(62, "Connector temperature that is critical.", reload="live", unit="°C", ge=20, le=110)
    hpwr_hold_s: int = key(
        60, "How long it must stay critical before monitor.hpwr_action.", reload="live", unit="s", ge=1, le=86_400
    )
    hpwr_action: Literal["none", "drain", "stop"] = key(
        "none",
        "On critical temperature: nothing, stop admitting requests, or stop the unit.",
        reload="live",
    )
