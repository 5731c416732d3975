"""From settings to an engine that has answered a probe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.config.schema import Settings
from ninferd.engine.cuda_graphs import CudaGraphs
from ninferd.engine.engine import Engine
from ninferd.engine.messages import EngineInfo, LoadProgress
from ninferd.errors import InputError
from ninferd.memory.budget import CapacityPlan, CapacityRequest, free_host_bytes, plan_capacity
from ninferd.memory.geometry import StateGeometry, kv_layout
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateCache
from ninferd.models import Qwen3_5Text, TextConfig, load_text_model
from ninferd.weights.identity import model_identity
from ninferd.weights.locate import artifact_path, default_name
from ninferd.weights.opening import prepare_source
from ninferd.weights.stored import forget_maps
from ninferd.weights.token_domain import token_count

logger = logging.getLogger(__name__)


def build_engine(settings: Settings, on_progress: Callable[[LoadProgress], None]) -> Engine:
    """Load the weights, allocate the caches in what is left, and answer a probe.

    Raises InputError for a model or a configuration that cannot be served, EngineBroken if the probe fails.
    """
    started_s = time.monotonic()
    identity = model_identity(artifact_path(settings.model.artifact))
    source = prepare_source(settings.model, lambda done, total: on_progress(LoadProgress("hash", done, total)))
    device = resolve_device(settings.engine.device)
    dtype = resolve_dtype(settings.engine.dtype, source.config, device)
    model = load_text_model(
        source,
        device,
        dtype,
        lambda done, total: on_progress(LoadProgress("weights", done, total)),
        available_bytes=free_bytes(device),
        fp4_prefill=settings.engine.prefill_activations == "nvfp4",
    )
    engine = engine_around(model, token_count(source, model.config.vocab_size), settings, identity, on_progress)
    engine.info = msgspec.structs.replace(engine.info, load_seconds=time.monotonic() - started_s)
    return engine


def engine_around(
    model: Qwen3_5Text, tokens: int, settings: Settings, identity: str, on_progress: Callable[[LoadProgress], None]
) -> Engine:
    """An engine that has answered a probe, of a loaded model with so many tokens. Raises as ``build_engine``."""
    device = model.device
    _require_context(settings, model.config)
    request = capacity_request(settings, model.config, model.dtype)
    plan = plan_capacity(request, free_bytes(device), host=device.type == "cpu")
    cache_bytes = plan.kv_bytes + plan.state_bytes
    on_progress(LoadProgress("caches", 0, cache_bytes))
    kv = KVCache(request.kv, plan.pages, plan.state_slots, plan.pages_per_sequence, device)
    state = StateCache(request.state, plan.state_slots, device, model.dtype)
    on_progress(LoadProgress("caches", cache_bytes, cache_bytes))
    info = _info(settings, model, plan, identity, tokens)
    logger.info("%s", info.ops)
    graphs = CudaGraphs(device) if settings.engine.cuda_graph and device.type == "cuda" else None
    engine = Engine(model, kv, state, info, settings.engine.prefill_chunk, graphs=graphs)
    forget_maps()
    on_progress(LoadProgress("probe", 0, 0))
    engine.probe()
    return engine


def match_threads(info: EngineInfo) -> None:
    """Keep torch to one thread where the compiled CPU ops serve.

    They use one, and waking a second for a sampler's small reductions costs more than it saves. It changes the whole
    process, so only the engine child calls it.
    """
    if info.device == "cpu" and info.weights_dtype == "float32":
        torch.set_num_threads(1)


def resolve_device(configured: str | int) -> torch.device:
    """``engine.device`` as a torch device; InputError if that device is not there."""
    if configured == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if configured == "auto":
            return torch.device("cpu")
        raise InputError(f"engine.device is {configured}, but torch sees no CUDA device; use cpu or auto")
    index = 0 if configured == "auto" else int(configured)
    if index >= torch.cuda.device_count():
        raise InputError(f"engine.device is {index}, but torch sees {torch.cuda.device_count()} CUDA device(s)")
    return torch.device("cuda", index)


def resolve_dtype(configured: str, config: Mapping[str, Any], device: torch.device) -> torch.dtype:
    """``engine.dtype``, of activations and plain weights.

    ``auto`` is float32 on a CPU, else what ``config`` (of ``config.json``) declares: float32, or bfloat16 also where it
    declares nothing, as an artifact does.
    """
    if configured == "auto" and device.type != "cpu":
        text = config.get("text_config", config)
        configured = text.get("dtype", text.get("torch_dtype", config.get("dtype")))
        return torch.float32 if configured == "float32" else torch.bfloat16
    return torch.bfloat16 if configured == "bfloat16" else torch.float32


def capacity_request(settings: Settings, config: TextConfig, dtype: torch.dtype) -> CapacityRequest:
    """What the caches of this model cost and how much of them the operator wants."""
    attention, delta = config.attention, config.gated_delta
    return CapacityRequest(
        max_context_tokens=settings.engine.max_context,
        max_concurrency=settings.engine.max_concurrency,
        kv_capacity=settings.engine.kv_capacity,
        kv=kv_layout(settings.engine.kv_dtype, config.attention_layer_count, attention.kv_heads, attention.head_dim),
        state=StateGeometry(
            gdn_layers=config.gdn_layer_count,
            conv_channels=delta.conv_channels,
            conv_history=delta.conv_kernel - 1,
            conv_element_bytes=dtype.itemsize,
            value_heads=delta.value_heads,
            key_head_dim=delta.key_dim,
            value_head_dim=delta.value_dim,
        ),
    )


def _require_context(settings: Settings, config: TextConfig) -> None:
    longest = int(config.max_position_embeddings * settings.engine.rope_scaling_factor)
    if settings.engine.max_context > longest:
        raise InputError(
            f"engine.max_context is {settings.engine.max_context} tokens, this model reaches {longest} "
            f"({config.max_position_embeddings} positions x rope_scaling_factor)"
        )


def free_bytes(device: torch.device) -> int:
    """Memory of the device that is free now."""
    if device.type == "cpu":
        return free_host_bytes()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def _info(settings: Settings, model: Qwen3_5Text, plan: CapacityPlan, identity: str, token_count: int) -> EngineInfo:
    device = model.device
    return EngineInfo(
        model_name=settings.model.id or default_name(settings.model.artifact),
        architecture=model.config.model_type,
        device="cpu" if device.type == "cpu" else f"{device} {torch.cuda.get_device_name(device)}",
        weights_dtype=str(model.dtype).removeprefix("torch."),
        kv_dtype=settings.engine.kv_dtype,
        vocab_size=token_count,
        max_context=settings.engine.max_context,
        max_concurrency=settings.engine.max_concurrency,
        kv_capacity_tokens=plan.kv_capacity_tokens,
        page_tokens=PAGE_TOKENS,
        state_slots=plan.state_slots,
        weights_bytes=model.weights_bytes,
        kv_bytes=plan.kv_bytes,
        state_bytes=plan.state_bytes,
        load_seconds=0.0,
        model_identity=identity,
        ops=model.ops.report,
    )
