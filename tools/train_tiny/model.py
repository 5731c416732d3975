"""Training model of ``ninfer-tiny``: the Qwen3.5 text architecture and its MTP layer, named as in the checkpoint."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.train_tiny import pointwise
from tools.train_tiny.configs import Shape
from tools.train_tiny.gated_delta import gated_delta


class Rows:
    """What depends only on the batch geometry ``rows × length``: rotation tables and each token's place in its row."""

    def __init__(self, rows: int, length: int, shape: Shape, device: torch.device) -> None:
        """Builds the tables; ``length`` must be a multiple of 64."""
        if length % pointwise.CHUNK:
            raise ValueError(f"row length {length} is not a multiple of {pointwise.CHUNK}")
        self.rows, self.length = rows, length
        self.history = torch.arange(length, device=device).repeat(rows)
        exponent = torch.arange(0, shape.rotary_dim, 2, device=device).float() / shape.rotary_dim
        angles = self.history[:, None].float() * shape.rope_theta**-exponent
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos(), angles.sin()


class Linear(nn.Module):
    """Bias-free projection computed in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Initialises with variance 1/inputs."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        """``x [T, inputs]`` → ``[T, outputs]``."""
        return functional.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """Zero-centred RMSNorm; returns the compute dtype."""

    def __init__(self, size: int, shape: Shape, dtype: torch.dtype) -> None:
        """``size`` normalised dims."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.epsilon, self.dtype = shape.rms_norm_eps, dtype

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis."""
        return pointwise.rms_norm(x, self.weight, self.epsilon).to(self.dtype)


class Attention(nn.Module):
    """Causal softmax attention with per-head output gate, q/k norm and partial rotation."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        """Rows of ``q_proj`` alternate query and gate per head."""
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.epsilon = (
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.rms_norm_eps,
        )
        self.q_proj = Linear(shape.hidden_size, 2 * self.heads * self.dim)
        self.k_proj = Linear(shape.hidden_size, self.kv_heads * self.dim)
        self.v_proj = Linear(shape.hidden_size, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, shape.hidden_size)
        self.q_norm = Norm(self.dim, shape, dtype)
        self.k_norm = Norm(self.dim, shape, dtype)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """``x [T, hidden]`` → ``[T, hidden]``."""
        q, gate = self.q_proj(x).view(-1, self.heads, 2 * self.dim).chunk(2, -1)
        k, v = self.k_proj(x).view(-1, self.kv_heads, self.dim), self.v_proj(x).view(-1, self.kv_heads, self.dim)
        q = pointwise.rope_head_norm(q, self.q_norm.weight, rows.cos, rows.sin, self.epsilon)
        k = pointwise.rope_head_norm(k, self.k_norm.weight, rows.cos, rows.sin, self.epsilon)
        q, k, v = (t.view(rows.rows, rows.length, -1, self.dim).transpose(1, 2) for t in (q, k, v))
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        o = o.transpose(1, 2).reshape(-1, self.heads, self.dim)
        projected: Tensor = self.o_proj(pointwise.gate_output(o, gate).reshape(-1, self.heads * self.dim))
        return projected


class HeadNorm(nn.Module):
    """The plain (not zero-centred) weight of the gated norm inside GDN."""

    def __init__(self, size: int) -> None:
        """Starts at one."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class GatedDelta(nn.Module):
    """Gated DeltaNet mixer."""

    def __init__(self, shape: Shape) -> None:
        """Decay starts slow (``dt_bias`` about -4) so that early training can carry facts across the row."""
        super().__init__()
        self.key_heads, self.value_heads, self.dim = (
            shape.linear_key_heads,
            shape.linear_value_heads,
            shape.linear_head_dim,
        )
        self.epsilon = shape.rms_norm_eps
        channels = (2 * self.key_heads + self.value_heads) * self.dim
        self.in_proj_qkv = Linear(shape.hidden_size, channels)
        self.in_proj_z = Linear(shape.hidden_size, self.value_heads * self.dim)
        self.in_proj_b = Linear(shape.hidden_size, self.value_heads)
        self.in_proj_a = Linear(shape.hidden_size, self.value_heads)
        self.conv1d = nn.Conv1d(channels, channels, shape.conv_kernel, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.linspace(-5.0, -1.0, self.value_heads))
        self.norm = HeadNorm(self.dim)
        self.out_proj = Linear(self.value_heads * self.dim, shape.hidden_size)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """``x [T, hidden]`` → ``[T, hidden]``."""
        u, heads = self.in_proj_qkv(x), (self.key_heads, self.value_heads, self.dim)
        q, k, v = pointwise.delta_inputs(u, self.conv1d.weight, rows.history, *heads)
        g, beta = pointwise.chunk_gates(self.in_proj_a(x), self.in_proj_b(x), self.A_log, self.dt_bias)
        o = gated_delta(q, k, v, g, beta, rows.rows)
        projected: Tensor = self.out_proj(pointwise.gated_norm(o, self.in_proj_z(x), self.norm.weight, self.epsilon))
        return projected


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        """Three bias-free projections."""
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """``x [T, hidden]`` → ``[T, hidden]``."""
        projected: Tensor = self.down_proj(pointwise.swiglu(self.gate_proj(x), self.up_proj(x)))
        return projected


class Layer(nn.Module):
    """Pre-norm residual block; the residual stream stays fp32."""

    def __init__(self, shape: Shape, full_attention: bool, dtype: torch.dtype) -> None:
        """Holds either ``self_attn`` or ``linear_attn``."""
        super().__init__()
        self.full_attention = full_attention
        if full_attention:
            self.self_attn = Attention(shape, dtype)
        else:
            self.linear_attn = GatedDelta(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape, dtype)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape, dtype)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """``x [T, hidden]`` fp32 → the same."""
        mixer = self.self_attn if self.full_attention else self.linear_attn
        mixed: Tensor = x + mixer(self.input_layernorm(x), rows)
        out: Tensor = mixed + self.mlp(self.post_attention_layernorm(mixed))
        return out


class Trunk(nn.Module):
    """Embedding, layers and final norm (the checkpoint's ``model.``)."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        """Embeddings start small because they are also the output head."""
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape, shape.is_full_attention(i), dtype) for i in range(shape.num_layers))
        self.norm = Norm(shape.hidden_size, shape, dtype)


class Mtp(nn.Module):
    """The draft layer: predicts token t+2 from the final hidden state at t and the embedding of token t+1."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        """One full-attention layer behind a projection of [embedding ‖ hidden]."""
        super().__init__()
        self.fc = Linear(2 * shape.hidden_size, shape.hidden_size)
        self.pre_fc_norm_embedding = Norm(shape.hidden_size, shape, dtype)
        self.pre_fc_norm_hidden = Norm(shape.hidden_size, shape, dtype)
        self.layers = nn.ModuleList([Layer(shape, True, dtype)])
        self.norm = Norm(shape.hidden_size, shape, dtype)

    def forward(self, embedding: Tensor, hidden: Tensor, rows: Rows) -> Tensor:
        """``embedding`` of the next tokens and ``hidden``, both ``[T, hidden]`` → normed draft state, the same."""
        joined = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1)
        state: Tensor = self.norm(self.layers[0](self.fc(joined).float(), rows))
        return state


class TinyModel(nn.Module):
    """The whole model with the tied head; ``dtype`` is the compute dtype of products (state and norms stay fp32)."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.bfloat16) -> None:
        """Output projections are scaled down by the depth, as usual for residual streams."""
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = Trunk(shape, dtype)
        self.mtp = Mtp(shape, dtype)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.data.mul_(1.0 / math.sqrt(2 * shape.num_layers))

    def forward(self, tokens: Tensor, following: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Logits ``[T, vocabulary]`` of the next tokens, and the draft layer's of those after ``following [T]``."""
        hidden = self.hidden(tokens, rows)
        return self.logits(hidden), self.logits(self.draft(hidden, following, rows))

    def hidden(self, tokens: Tensor, rows: Rows) -> Tensor:
        """``tokens [T]`` → final-normed hidden states ``[T, hidden]``."""
        x = functional.embedding(tokens, self.model.embed_tokens.weight)
        for layer in self.model.layers:
            x = layer(x, rows)
        normed: Tensor = self.model.norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Tied head: ``[T, hidden]`` → ``[T, vocabulary]``."""
        return functional.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    def draft(self, hidden: Tensor, next_tokens: Tensor, rows: Rows) -> Tensor:
        """MTP states ``[T, hidden]`` from the trunk's states and the tokens that follow them."""
        embedding = functional.embedding(next_tokens, self.model.embed_tokens.weight)
        state: Tensor = self.mtp(embedding, hidden, rows)
        return state
