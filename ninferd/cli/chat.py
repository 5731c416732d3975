"""``ninferd generate`` and ``ninferd chat``: the model in this terminal, without HTTP."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ninferd.cli.options import add_config_options, sources_from_args
from ninferd.errors import InputError

if TYPE_CHECKING:
    from ninferd.cli.chat_session import Session

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MAX_MESSAGES_FILE_BYTES = 64 << 20

_HELP = """\
/think on|off   reason before answering, or not
/reset          forget the conversation
/exit           leave (also Ctrl-D)
Ctrl-C stops an answer."""


def register(commands: Commands) -> None:
    """Add both commands to the tree."""
    generate = commands.add_parser(
        "generate",
        help="answer one prompt: text on stdout, reasoning and statistics on stderr",
        usage="%(prog)s [ARTIFACT] (--prompt TEXT | --messages FILE) [--max-tokens N] [--stop TEXT] "
        "[CONFIGURATION OPTIONS]",
        description="Sampling flags such as --temperature, --seed and --no-thinking are listed below.",
    )
    source = generate.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one user message")
    source.add_argument(
        "--messages",
        type=Path,
        metavar="FILE",
        help="JSON: an array of chat messages, or a whole /v1/chat/completions body (- is stdin)",
    )
    _add_answer_options(generate)
    generate.set_defaults(handler=_generate)
    chat = commands.add_parser(
        "chat",
        help="talk to the model",
        usage="%(prog)s [ARTIFACT] [--max-tokens N] [--stop TEXT] [CONFIGURATION OPTIONS]",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_answer_options(chat)
    chat.set_defaults(handler=_chat)


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=int, metavar="N", help="output limit (default: limits.default_max_tokens)")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text; up to 4 times"
    )
    add_config_options(parser, positional_artifact=True)


def _generate(args: argparse.Namespace) -> int:
    body = _request_body(args)
    with _open_session(args) as session:
        session.answer(body)
    return 0


def _chat(args: argparse.Namespace) -> int:
    if sys.stdin.isatty():
        import readline  # noqa: F401 (gives input() line editing and history)
    options = _answer_options(args)
    messages: list[dict[str, Any]] = []
    with _open_session(args) as session:
        print(_HELP, file=sys.stderr)
        while (line := _read_line()) is not None:
            command, _, argument = line.partition(" ")
            if command == "/exit":
                break
            if command == "/reset":
                messages.clear()
            elif command == "/think" and argument in ("on", "off"):
                options["enable_thinking"] = argument == "on"
            elif command.startswith("/"):
                print(_HELP, file=sys.stderr)
            else:
                _take_turn(session, messages, line, options)
    return 0


def _take_turn(session: Session, messages: list[dict[str, Any]], line: str, options: dict[str, Any]) -> None:
    """Answer one line; a refused one is taken back, a stopped answer stays as far as it came."""
    messages.append({"role": "user", "content": line})
    try:
        messages.append(session.answer({**options, "messages": messages}, interruptible=True))
    except InputError as error:
        messages.pop()
        print(f"ninferd: {error}", file=sys.stderr)


def _read_line() -> str | None:
    """The next non-empty line, None at the end of input."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if line:
            return line


def _open_session(args: argparse.Namespace) -> Session:
    from ninferd.cli.chat_session import Session
    from ninferd.daemon.serving import load_config

    return Session(load_config(sources_from_args(args)).settings)


def _answer_options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if args.max_tokens is not None:
        options["max_tokens"] = args.max_tokens
    if args.stop:
        options["stop"] = args.stop
    return options


def _request_body(args: argparse.Namespace) -> dict[str, Any]:
    if args.prompt is not None:
        return {"messages": [{"role": "user", "content": args.prompt}], **_answer_options(args)}
    content = _read_messages(args.messages)
    body = content if isinstance(content, dict) else {"messages": content}
    return {**body, **_answer_options(args)}


def _read_messages(path: Path) -> Any:
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_MESSAGES_FILE_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_MESSAGES_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"--messages {path}: {error.strerror}") from error
    if len(data) > MAX_MESSAGES_FILE_BYTES:
        raise InputError(f"--messages {path}: more than {MAX_MESSAGES_FILE_BYTES} bytes")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"--messages {path}: not valid JSON: {error}") from error
