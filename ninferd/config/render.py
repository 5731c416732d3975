"""Writes the files that follow from the schema: ``python -m ninferd.config.render etc|docs``.

``etc`` is ``etc/ninferd.toml``, ``docs`` is ``docs/configuration.md``; a test holds both to the schema.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from ninferd.config.availability import build_note, is_later
from ninferd.config.describe import toml_key, toml_text
from ninferd.config.keys import KEYS, TABLES, KeySpec
from ninferd.config.prose import DOCS_HEAD, ETC_HEAD
from ninferd.config.reload import RESTART_REASONS

_WIDTH = 110


def etc_file() -> str:
    """The base file with every key commented out at its default."""
    lines = [ETC_HEAD.rstrip("\n")]
    table = ""
    for spec in KEYS.values():
        if (own := ".".join(spec.path[:-1])) != table:
            table = own
            lines += ["", "", *_comment(_summary(table)), f"[{table}]"]
        lines += ["", *_comment(_meaning(spec)), *_comment(_facts(spec)), _default_line(spec)]
    return "\n".join(lines) + "\n"


def docs_page() -> str:
    """The reference page: rules first, then one table per TOML table."""
    parts = [DOCS_HEAD.rstrip("\n")]
    table = ""
    for spec in KEYS.values():
        if (own := ".".join(spec.path[:-1])) != table:
            table = own
            parts += [
                "",
                f"### [{table}]",
                "",
                _summary(table),
                "",
                "| Key | Default | Accepted | Reload | Flag | Meaning |",
                "|---|---|---|---|---|---|",
            ]
        parts.append(_docs_row(spec))
    parts += ["", "## Keys that need a restart, and why", "", *_restart_rows()]
    return "\n".join(parts) + "\n"


def _summary(table: str) -> str:
    text = (TABLES[table].__doc__ or "").strip()
    return f"{text} Not in this build: only the defaults are accepted." if _is_later_table(table) else text


def _is_later_table(table: str) -> bool:
    return all(is_later(spec) for spec in KEYS.values() if ".".join(spec.path[:-1]) == table)


def _meaning(spec: KeySpec) -> str:
    """The key's help and what this build lacks of it, unless the whole table says so."""
    note = "" if _is_later_table(".".join(spec.path[:-1])) else build_note(spec)
    return f"{spec.help} {note}".rstrip()


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False))


def _facts(spec: KeySpec) -> str:
    unit = f" Unit: {spec.unit}." if spec.unit else ""
    return f"Accepted: {spec.accepted}.{unit} Reload: {spec.reload}."


def _default_line(spec: KeySpec) -> str:
    name = toml_key(spec.path[-1])
    if spec.default is None:
        return f"#{name} =   # {'required' if spec.required else 'unset by default'}"
    return f"#{name} = {toml_text(spec.default)}"


def _docs_row(spec: KeySpec) -> str:
    default = "required" if spec.required else "unset" if spec.default is None else f"`{toml_text(spec.default)}`"
    unit = f" ({spec.unit})" if spec.unit else ""
    flag = f"`{spec.flag}`" if spec.flag else ""
    cells = (f"`{spec.path[-1]}`", default + unit, spec.accepted, spec.reload, flag, _meaning(spec))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _restart_rows() -> Iterator[str]:
    yield from ("| Key | Why |", "|---|---|")
    for name, reason in RESTART_REASONS.items():
        yield f"| `{name}` | {reason} |"


def main() -> int:
    """Print the asked-for file."""
    writers = {"etc": etc_file, "docs": docs_page}
    if len(sys.argv) != 2 or sys.argv[1] not in writers:
        print("usage: python -m ninferd.config.render etc|docs", file=sys.stderr)
        return 2
    sys.stdout.write(writers[sys.argv[1]]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
