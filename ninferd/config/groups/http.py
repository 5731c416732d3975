"""Tables of the HTTP side: listener, connections, queue, limits, stored responses, compatibility."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from ninferd.config.field import PathValue, Table, Texts, key

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]


class ServerSettings(Table):
    """The listening socket and who may use it."""

    host: str = key(
        "127.0.0.1",
        "Address or name to listen on. 0.0.0.0 opens the daemon to the network: set API keys then.",
        reload="process",
        flag="--host",
        min_length=1,
    )
    port: int = key(8080, "TCP port of the API.", reload="process", flag="--port", ge=1, le=65535)
    stats_port: int = key(
        0,
        "Separate port for GET /stats and GET /health without authentication, so that pollers never queue behind "
        "streams; 0 is off. Must differ from server.port.",
        reload="process",
        flag="--stats-port",
        ge=0,
        le=65535,
    )
    api_key: SecretStr | None = key(
        None,
        "One inline API key. Prefer server.api_keys_file: this file is often world-readable.",
        reload="live",
        secret=True,
        min_length=1,
    )
    api_keys: dict[Label, Annotated[SecretStr, Field(min_length=1)]] = key(
        {},
        "Inline API keys by label; the label appears in logs, the key never. Prefer server.api_keys_file.",
        reload="live",
        secret=True,
    )
    api_keys_file: PathValue | None = key(
        None,
        "File of `label:key` lines, mode 0600, read again on every reload. With no key at all the API is open to "
        "whoever reaches the port.",
        reload="live",
    )
    cors: bool = key(False, "Answer browsers of any origin (CORS).", reload="live", flag="--cors")
    drain_s: int = key(
        30,
        "How long running streams may finish after SIGTERM before they are cancelled.",
        reload="live",
        unit="s",
        ge=0,
        le=3600,
    )
    models_public: bool = key(False, "Serve GET /v1/models without an API key.", reload="live")


class HttpSettings(Table):
    """Behaviour of connections and streams."""

    keepalive_comment_s: int = key(
        5,
        "Silence on a stream after which a comment is sent, so that proxies and clients do not give up.",
        reload="live",
        unit="s",
        ge=1,
        le=60,
    )
    idle_keepalive_s: int = key(
        75, "How long an idle connection stays open between requests.", reload="process", unit="s", ge=5, le=600
    )
    anthropic_ping: bool = key(True, "Send `ping` events on Anthropic streams during silence.", reload="live")
    progress_events: bool = key(False, "Send visible prefill progress to clients that ignore comments.", reload="live")
    retry_after: bool = key(True, "Send Retry-After with refusals that are worth repeating.", reload="live")
    trust_forwarded_for: bool = key(
        False, "Log the peer from X-Forwarded-For; for use behind a proxy only.", reload="live"
    )


class QueueSettings(Table):
    """Requests that wait for a free lane."""

    max_pending: int = key(
        16,
        "Requests that may wait beyond the running ones; more are refused at once. Lowering it never rejects "
        "requests that already wait.",
        reload="live",
        unit="requests",
        flag="--max-pending-requests",
        ge=1,
        le=1_000_000,
    )
    pending_timeout_ms: int = key(
        30_000,
        "Longest wait from arrival to admission. Long agent queues want 300000 to 600000.",
        reload="live",
        unit="ms",
        flag="--pending-timeout-ms",
        ge=1,
        le=604_800_000,
    )
    per_key_max: int = key(
        0,
        "Requests that one API key may have running and waiting; 0 is no limit.",
        reload="live",
        unit="requests",
        ge=0,
        le=1_000_000,
    )
    count_tokens_bypass: bool = key(True, "Token counting of text-only prompts takes no queue place.", reload="live")


class LimitsSettings(Table):
    """What one request may ask for."""

    max_request_mib: int = key(
        384,
        "Largest request body, refused before it is parsed.",
        reload="live",
        unit="MiB",
        flag="--max-request-mib",
        ge=1,
        le=65_536,
    )
    default_max_tokens: Annotated[int, Field(ge=1, le=8_388_608)] | Literal["context"] = key(
        8192,
        'Output limit of a request that names none; "context" is whatever is left of the context window.',
        reload="live",
        unit="tokens",
        flag="--default-max-tokens",
    )
    max_output_tokens: int = key(
        0,
        "Lowers the output limit of every request silently; 0 is no cap.",
        reload="live",
        unit="tokens",
        flag="--max-output-tokens",
        ge=0,
        le=8_388_608,
    )
    max_generation_s: int = key(
        0,
        "Longest generation of one request, ended like an output limit; 0 is unlimited.",
        reload="live",
        unit="s",
        ge=0,
        le=604_800,
    )


class ResponsesSettings(Table):
    """Store behind the stateful Responses API."""

    store_max_records: int = key(
        1024,
        "Stored responses; the least recently used go first.",
        reload="live",
        unit="records",
        flag="--response-store-max-records",
        ge=1,
        le=10_000_000,
    )
    store_max_mib: int = key(
        256,
        "Memory of stored responses; the least recently used go first.",
        reload="live",
        unit="MiB",
        flag="--response-store-max-mib",
        ge=1,
        le=1_048_576,
    )


class CompatSettings(Table):
    """Tolerance towards real clients."""

    mode: Literal["lenient", "strict"] = key(
        "lenient",
        "lenient accepts and ignores request fields that cannot be honoured and lists them in x-ninfer-ignored; "
        "strict answers 400.",
        reload="live",
    )
    model_alias: Texts = key((), 'Further model names that clients may use; ["*"] accepts any name.', reload="live")
    echo_model: bool = key(True, "Answer with the model name that the client used.", reload="live")
