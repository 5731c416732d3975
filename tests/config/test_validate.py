"""Every class of bad value, with its place and its exact message."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.config.layers import load
from tests.config.support import MODEL, refusal, sources

_CASES = {
    # one line of TOML in table [engine] or another -> what follows "FILE:LINE: "
    '[server]\nport = "8080"': 'server.port: expected an integer in 1..65535, got "8080" (a string)',
    "[server]\nport = 8080.0": "server.port: expected an integer in 1..65535, got 8080.0",
    "[server]\nport = true": "server.port: expected an integer in 1..65535, got true",
    "[server]\nport = 0": "server.port: expected an integer in 1..65535, got 0",
    "[server]\nport = 65536": "server.port: expected an integer in 1..65535, got 65536",
    "[server]\nport = [1]": "server.port: expected an integer in 1..65535, got [1] (an array)",
    "[server]\nport = 1979-05-27": "server.port: expected an integer in 1..65535, got 1979-05-27",
    "[server]\nhost = ''": 'server.host: expected a non-empty string, got "" (a string)',
    "[server]\nhost = 5": "server.host: expected a non-empty string, got 5",
    "[server]\ncors = 'yes'": 'server.cors: expected true or false, got "yes" (a string)',
    "[server]\ncors = 1": "server.cors: expected true or false, got 1",
    "[engine]\nprefill_chunk = 1000": (
        "engine.prefill_chunk: expected an integer in 128..1048576, a multiple of 128, got 1000"
    ),
    "[engine]\nkv_capacity = 'all'": (
        'engine.kv_capacity: expected an integer in 1..2147483647 or "auto", got "all" (a string)'
    ),
    "[engine]\nkv_capacity = 0": 'engine.kv_capacity: expected an integer in 1..2147483647 or "auto", got 0',
    "[engine]\ndevice = -1": 'engine.device: expected one of "auto", "cpu" or an integer in 0..1023, got -1',
    "[engine]\nrope_scaling_factor = nan": "engine.rope_scaling_factor: expected a number in 1.0..32.0, got nan",
    "[engine]\nrope_scaling_factor = inf": "engine.rope_scaling_factor: expected a number in 1.0..32.0, got inf",
    "[engine]\nkv_dtype = 'int4'": (
        'engine.kv_dtype: expected one of "bf16", "fp32", "int8", "fp8", "nvfp4", "k8v4", got "int4" (a string)'
    ),
    "[sampling]\nseed = -1": "sampling.seed: expected an integer in 0..18446744073709551615, got -1",
    "[sampling]\nseed = 18446744073709551616": "sampling.seed: an integer beyond 64 bits",
    f"[sampling]\nseed = 0x{'f' * 6000}": "sampling.seed: an integer beyond 64 bits",
    f"[template]\nkwargs = {{ a = [0x1{'0' * 16}] }}": "template.kwargs.a.0: an integer beyond 64 bits",
    "[sampling.post_thinking]\ntop_p = 2": "sampling.post_thinking.top_p: expected a number in 0..1, got 2",
    "[sampling]\npost_thinking = 5": "sampling.post_thinking: expected a table",
    "[template]\nfile = 5": "template.file: expected a path, got 5",
    "[template]\nfile = ''": 'template.file: expected a path, got "" (a string)',
    '[template]\nfile = "a\\u0000"': 'template.file: expected a path, got "a\\u0000" (a string)',
    "[template]\nkwargs = 5": "template.kwargs: expected a table of JSON values, got 5",
    "[template]\nkwargs = { day = 1979-05-27 }": (
        "template.kwargs: expected a table of JSON values, got { day = 1979-05-27 } (a table)"
    ),
    "[monitor]\nserver_url = 'ftp://x'": (
        'monitor.server_url: expected an http:// or https:// URL, got "ftp://x" (a string)'
    ),
    f"[model]\nid = [{'1, ' * 100}]": (
        f"model.id: expected a non-empty string, got {'[' + '1, ' * 26 + '1'}… (an array)"
    ),
    "[engine]\nmax_contxt = 5": "engine.max_contxt: unknown key; did you mean engine.max_context?",
    "[engine]\nport = 5": "engine.port: unknown key; did you mean server.port?",
    "[engine]\nzzz = 5": "engine.zzz: unknown key",
    "[engine.zzz]\na = 5": "engine.zzz: unknown table",
    "[sampling.post_thinkin]\ntop_p = 1": (
        "sampling.post_thinkin: unknown table; did you mean [sampling.post_thinking]?"
    ),
    "[engin]\nmax_context = 5": "engin: unknown table; did you mean [engine]?",
    "[xyz]\na = 5": "xyz: unknown table",
    "[[engine]]\nmax_context = 5": "engine: expected a table",
}


@pytest.mark.parametrize(
    ("text", "message"), _CASES.items(), ids=[message.split(":")[0] for message in _CASES.values()]
)
def test_a_bad_value_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    base = "" if "[model]" in text else MODEL
    lines = f"{base}{text}\n".split("\n")
    first, second = len(lines) - 2, len(lines) - 1
    line = first if "unknown table" in message or message.startswith("engine: expected") else second
    assert refusal(sources(tmp_path, "\n".join(lines))) == [f"{tmp_path}/ninferd.toml:{line}: {message}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("engine = 5", "engine: expected a table"),
        ("port = 5", "port: unknown key; did you mean server.port?"),
        ("_env_file = 'x'", "_env_file: unknown key"),  # a constructor argument of BaseSettings
        ("extends = 'x'", "extends: only a profile extends another one"),
    ],
)
def test_top_level_faults(tmp_path: Path, line: str, message: str) -> None:
    assert refusal(sources(tmp_path, f"# comment\n{line}\n{MODEL}")) == [f"{tmp_path}/ninferd.toml:2: {message}"]


def test_a_drop_in_chooses_no_profile(tmp_path: Path) -> None:
    config = sources(tmp_path, conf_d={"1": "\nprofile = 'tiny'\n"})
    assert refusal(config) == [f"{tmp_path}/conf.d/1.toml:2: profile: profile is chosen in the base file only"]


def test_a_bad_array_item_has_its_own_line_and_a_key_is_reported_once(tmp_path: Path) -> None:
    config = sources(tmp_path, MODEL + "[compat]\nmodel_alias = [\n 'a',\n 5,\n 6,\n]\n")
    message = 'compat.model_alias: expected an array of strings (a non-empty string each), got ["a", 5, 6] (an array)'
    assert refusal(config) == [f"{tmp_path}/ninferd.toml:{line}: {message}" for line in (6, 7)]


def test_problems_of_one_file_come_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = "[zzz]\n[server]\nport = 0\n[model]\nid = 5\nnope = 1\n[engine]\nmax_context = 0\n"
    lines = [int(problem.split(":")[1]) for problem in refusal(sources(tmp_path, text))]
    assert lines == [1, 3, 5, 6, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("api_key = 'hunter 2' # }\napi_keys = { a = 'hunter', b = 5 }", "server.api_keys"),
        ("api_keys = ['hunter']", "server.api_keys"),
        ("api_key = ['hunter']", "server.api_key"),
        ("api_keys = { 'bad label' = 'hunter' }", "server.api_keys"),
    ],
)
def test_a_rejected_secret_is_not_printed(tmp_path: Path, text: str, message: str) -> None:
    (problem,) = refusal(sources(tmp_path, f"{MODEL}[server]\n{text}\n"))
    assert "hunter" not in problem
    assert f": {message}: expected " in problem
    assert problem.endswith("got <redacted>")


def test_a_shadowed_bad_value_is_still_an_error(tmp_path: Path) -> None:
    config = sources(tmp_path, MODEL + "[server]\nport = 'x'\n", conf_d={"1": "[server]\nport = 1\n"})
    assert [problem.split(": ")[0] for problem in refusal(config)] == [f"{tmp_path}/ninferd.toml:4"]


def test_a_number_may_be_written_as_an_integer(tmp_path: Path) -> None:
    assert load(sources(tmp_path, MODEL + "[sampling]\ntemperature = 1\n")).settings.sampling.temperature == 1.0


def test_a_model_that_no_path_can_name(tmp_path: Path) -> None:
    config = sources(tmp_path, '[model]\nartifact = "a\\u0000b"\n')
    message = 'model.artifact: expected a non-empty string, got "a\\u0000b" (a string)'
    assert refusal(config) == [f"{tmp_path}/ninferd.toml:2: {message}"]
