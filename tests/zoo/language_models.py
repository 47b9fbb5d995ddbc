"""Language models in the styles of public code: small, with the rule's edits as numbers (`Edits`)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .attention_parts import attend, flax_attention, rotate, sines, unit_rms
from .edits import BASE_WIDTH, Edits

VOCABULARY, LENGTH, HEADS, HEAD_DIM = 11, 6, 2, 8  # HEADS where their dimension grows, HEAD_DIM where their number does
_TABLE_STD = BASE_WIDTH**-0.5  # of a tied embedding: logits of order one at the base


class SetupBlock(nn.Module):
    """Pre-norm attention and GELU feed-forward, in ``setup``."""

    width: int
    edits: Edits

    def setup(self):
        d, e = self.width // HEADS, self.edits
        heads = lambda: nn.DenseGeneral((HEADS, d), use_bias=False, kernel_init=e.hidden)
        self.query, self.key, self.value = heads(), heads(), heads()
        self.attn_out = nn.DenseGeneral(self.width, axis=(-2, -1), use_bias=False, kernel_init=e.last)
        self.norm_attn, self.norm_mlp = nn.LayerNorm(use_bias=False), nn.LayerNorm(use_bias=False)
        self.up = nn.Dense(4 * self.width, use_bias=False, kernel_init=e.hidden)
        self.down = nn.Dense(self.width, use_bias=False, kernel_init=e.last)

    def __call__(self, x_BTD):
        e, y = self.edits, self.norm_attn(x_BTD)
        scale = e.attention(self.width // HEADS, BASE_WIDTH // HEADS)
        x_BTD = x_BTD + e.branch * self.attn_out(attend(self.query(y), self.key(y), self.value(y), scale))
        return x_BTD + e.last_branch * self.down(nn.gelu(self.up(self.norm_mlp(x_BTD))))


class SetupGPT(nn.Module):
    """nanodo's: everything in ``setup``, learned positions, the embedding is the readout too."""

    width: int
    depth: int
    edits: Edits

    def setup(self):
        self.embed = nn.Embed(VOCABULARY, self.width, embedding_init=self.edits.table(_TABLE_STD))
        self.pos_embed = nn.Embed(LENGTH, self.width, embedding_init=self.edits.table(_TABLE_STD))
        self.blocks = [SetupBlock(self.width, self.edits) for _ in range(self.depth)]
        self.out_norm = nn.LayerNorm(use_bias=False)

    def __call__(self, tokens_BT):
        x = self.edits.embedding * self.embed(tokens_BT) + self.pos_embed(jnp.arange(tokens_BT.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.edits.readout * self.embed.attend(self.out_norm(x))


class RotaryGPT(nn.Module):
    """Compact, rotary positions, a readout of its own; the number of heads grows, so attention stays as it was."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, tokens_BT):
        e, n = self.edits, self.width
        x = e.embedding * nn.Embed(VOCABULARY, n, embedding_init=e.table(), name="embed")(tokens_BT)
        dense = lambda features, init, name: nn.Dense(features, use_bias=False, kernel_init=init, name=name)
        for i in range(self.depth):
            y = nn.RMSNorm(name=f"block_{i}_norm")(x)
            q, k, v = (
                dense(n, e.hidden, f"block_{i}_{name}")(y).reshape(*y.shape[:2], n // HEAD_DIM, HEAD_DIM)
                for name in ("query", "key", "value")
            )
            y = attend(rotate(q), rotate(k), v, HEAD_DIM**-0.5).reshape(y.shape)
            x = x + e.branch * dense(n, e.last, f"block_{i}_out")(y)
            y = nn.silu(dense(2 * n, e.hidden, f"block_{i}_up")(nn.RMSNorm(name=f"block_{i}_norm_2")(x)))
            x = x + e.last_branch * dense(n, e.last, f"block_{i}_down")(y)
        return e.readout * dense(VOCABULARY, nn.initializers.lecun_normal(), "head")(nn.RMSNorm(name="norm")(x))


class ReluMlp(nn.Module):
    """A feed-forward with biases."""

    width: int
    edits: Edits

    @nn.compact
    def __call__(self, x):
        y = nn.relu(nn.Dense(2 * self.width, kernel_init=self.edits.hidden)(x))
        return nn.Dense(self.width, kernel_init=self.edits.last)(y)


class SineDecoder(nn.Module):
    """lm1b's: modules that Flax numbers, fixed positions, tied logits that had a 1/sqrt(D) of their own."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, tokens_BT):
        e = self.edits
        embed = nn.Embed(VOCABULARY, self.width, embedding_init=e.table(), name="shared_embedding")
        x = e.embedding * embed(tokens_BT) + sines(tokens_BT.shape[1], self.width)
        mask = nn.make_causal_mask(tokens_BT)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"decoderblock_{i}_norm_1")(x)
            x = x + e.branch * flax_attention(self.width, HEADS, e, f"decoderblock_{i}_attention")(y, mask=mask)
            y = nn.LayerNorm(name=f"decoderblock_{i}_norm_2")(x)
            x = x + e.last_branch * ReluMlp(self.width, e, name=f"decoderblock_{i}_mlp")(y)
        return e.readout * BASE_WIDTH**-0.5 * embed.attend(nn.LayerNorm(name="decoder_norm")(x))


class LlamaBlock(nn.Module):
    """Rotary attention with a growing head dimension and a gated feed-forward, for ``nn.scan``."""

    width: int
    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        e, n, d = self.edits, self.width, self.width // HEADS
        dense = lambda features, name: nn.Dense(features, use_bias=False, kernel_init=e.hidden, name=name)
        y = nn.RMSNorm(name="attention_norm")(x)
        heads = lambda name: dense(n, name)(y).reshape(*y.shape[:2], HEADS, d)
        q, k, v = heads("q_proj"), heads("k_proj"), heads("v_proj")
        y = attend(rotate(q), rotate(k), v, e.attention(d, BASE_WIDTH // HEADS)).reshape(y.shape)
        x = x + e.branch * nn.Dense(n, use_bias=False, kernel_init=e.last, name="o_proj")(y)
        y = nn.RMSNorm(name="mlp_norm")(x)
        y = nn.silu(dense(2 * n, "gate_proj")(y)) * dense(2 * n, "up_proj")(y)
        return x + e.last_branch * nn.Dense(n, use_bias=False, kernel_init=e.last, name="down_proj")(y), None


def scanned(block: type[nn.Module], depth: int) -> type[nn.Module]:
    """``block`` as a stack; ``intermediates`` lets the check see its activations."""
    axes = {"params": 0, "intermediates": 0}
    return nn.scan(block, variable_axes=axes, split_rngs={"params": True}, length=depth)


class ScannedLlama(nn.Module):
    """SwiGLU, rotary positions, layers under ``nn.scan``, a readout of its own."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, tokens_BT):
        e = self.edits
        x = e.embedding * nn.Embed(VOCABULARY, self.width, embedding_init=e.table(), name="embed_tokens")(tokens_BT)
        x, _ = scanned(LlamaBlock, self.depth)(self.width, e, name="layers")(x, None)
        x = nn.RMSNorm(name="norm")(x) * e.readout
        return nn.Dense(VOCABULARY, use_bias=False, name="lm_head")(x)


class ParallelBlock(nn.Module):
    """Attention with normalized queries and keys, beside the feed-forward: one branch, for ``nn.scan``."""

    width: int
    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        e, d = self.edits, self.width // HEADS
        y = nn.LayerNorm(name="norm")(x)
        heads = lambda name: nn.DenseGeneral((HEADS, d), use_bias=False, kernel_init=e.hidden, name=name)(y)
        q = nn.LayerNorm(use_bias=False, name="query_norm")(heads("query"))
        k = nn.LayerNorm(use_bias=False, name="key_norm")(heads("key"))
        mixed = attend(q, k, heads("value"), e.attention(d, BASE_WIDTH // HEADS))
        mixed = nn.DenseGeneral(self.width, axis=(-2, -1), use_bias=False, kernel_init=e.last, name="out")(mixed)
        y = nn.gelu(nn.Dense(2 * self.width, kernel_init=e.hidden, name="up")(y))
        y = nn.Dense(self.width, kernel_init=e.last, name="down")(y)
        return x + e.branch * (mixed + y), None


class QKNormGPT(nn.Module):
    """Query-key norm and parallel branches, as in the largest ViTs, under ``nn.scan``."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, tokens_BT):
        e = self.edits
        x = e.embedding * nn.Embed(VOCABULARY, self.width, embedding_init=e.table(), name="embed")(tokens_BT)
        x = x + self.param("pos_embedding", e.table(0.5), (1, tokens_BT.shape[1], self.width))
        x, _ = scanned(ParallelBlock, self.depth)(self.width, e, name="blocks")(x, None)
        x = nn.LayerNorm(name="norm")(x)
        return e.readout * nn.Dense(VOCABULARY, use_bias=False, name="head")(x)


class Experts(nn.Module):
    """A soft mixture of four feed-forwards, by a router with a fixed number of outputs."""

    width: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BTD):
        n, wide, experts = self.width, 2 * self.width, 4
        by_fan_in = lambda std: nn.initializers.variance_scaling(std**2, "fan_in", "normal", batch_axis=(0,))
        e = self.edits
        logits = nn.Dense(experts, use_bias=False, kernel_init=e.narrow, name="router")(x_BTD)
        weights_BTE = jax.nn.softmax(logits)
        wi = self.param("wi", by_fan_in(e.hidden_std), (experts, n, wide))
        wo = self.param("wo", by_fan_in(e.hidden_std * e.last_std), (experts, wide, n))
        h = nn.gelu(jnp.einsum("btd,edf->btef", x_BTD, wi))
        return jnp.einsum("btef,efd,bte->btd", h, wo, weights_BTE)


class ExpertsBlock(nn.Module):
    """Norm and experts, for ``nn.scan``."""

    width: int
    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        y = Experts(self.width, self.edits, name="moe")(nn.RMSNorm(name="norm")(x))
        return x + self.edits.branch * y, None


class MoE(nn.Module):
    """A mixture of experts in every layer; tokens do not mix."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, tokens_BT):
        e = self.edits
        x = e.embedding * nn.Embed(VOCABULARY, self.width, embedding_init=e.table(), name="embed")(tokens_BT)
        x, _ = scanned(ExpertsBlock, self.depth)(self.width, e, name="layers")(x, None)
        x = nn.RMSNorm(name="norm")(x)
        return e.readout * nn.Dense(VOCABULARY, use_bias=False, name="unembed")(x)


class Looped(nn.Module):
    """One block, used as often as the network is deep."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, tokens_BT):
        e = self.edits
        x = e.embedding * nn.Embed(VOCABULARY, self.width, embedding_init=e.table(), name="embed")(tokens_BT)
        again = nn.scan(
            SharedBlock, variable_broadcast="params", variable_axes={"intermediates": 0}, length=self.depth,
            split_rngs={"params": False},
        )  # fmt: skip
        x, _ = again(self.width, e, name="block")(x, None)
        return e.readout * nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm(name="norm")(x))


class SharedBlock(nn.Module):
    """The block of `Looped`."""

    width: int
    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        y = nn.gelu(nn.Dense(2 * self.width, kernel_init=self.edits.hidden, name="up")(nn.LayerNorm(name="norm")(x)))
        return x + self.edits.branch * nn.Dense(self.width, kernel_init=self.edits.last, name="down")(y), None


class RMSNorm(nnx.Module):
    """Gemma's: the scale is stored minus 1."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.zeros(width))

    def __call__(self, x):
        return unit_rms(x) * (1 + self.scale[...])


class Einsum(nnx.Module):
    """One weight in an einsum."""

    def __init__(self, shape: tuple[int, ...], fan_in: int, std: float, rngs: nnx.Rngs):
        self.w = nnx.Param(std * fan_in**-0.5 * jax.random.normal(rngs.params(), shape))

    def __call__(self, equation, x):
        return jnp.einsum(equation, x, self.w[...])


class GemmaBlock(nnx.Module):
    """Attention with half as many heads of keys and values, and a gated feed-forward."""

    def __init__(self, width: int, edits: Edits, rngs: nnx.Rngs):
        self.edits, heads, wide, std = edits, width // HEAD_DIM, 2 * width, edits.hidden_std
        self.pre_attention_norm, self.pre_ffw_norm = RMSNorm(width), RMSNorm(width)
        self.q_einsum = Einsum((heads, width, HEAD_DIM), width, std, rngs)
        self.kv_einsum = Einsum((2, heads // 2, width, HEAD_DIM), width, std, rngs)
        self.attn_vec_einsum = Einsum((heads, HEAD_DIM, width), width, std * edits.last_std, rngs)
        self.gating_einsum = Einsum((2, width, wide), width, std, rngs)
        self.linear = Einsum((wide, width), wide, std * edits.last_std, rngs)

    def __call__(self, x_BTD):
        y = self.pre_attention_norm(x_BTD)
        q, (k, v) = self.q_einsum("btd,hde->bthe", y), self.kv_einsum("btd,ckde->cbtke", y)
        y = attend(rotate(q), rotate(k), v, HEAD_DIM**-0.5)
        x_BTD = x_BTD + self.edits.branch * self.attn_vec_einsum("bthe,hed->btd", y)
        gate, up = self.gating_einsum("btd,cdf->cbtf", self.pre_ffw_norm(x_BTD))
        return x_BTD + self.edits.last_branch * self.linear("btf,fd->btd", jax.nn.gelu(gate) * up)


class Embedder(nnx.Module):
    """Gemma's: the table goes in times sqrt(D), here the base's, and out as it is."""

    def __init__(self, width: int, edits: Edits, rngs: nnx.Rngs):
        self.edits = edits
        table = edits.table(_TABLE_STD)(rngs.params(), (VOCABULARY, width))
        self.input_embedding = nnx.Param(table)

    def encode(self, tokens_BT):
        """``[B, T] -> [B, T, D]``."""
        return self.input_embedding[...][tokens_BT] * self.edits.embedding * BASE_WIDTH**0.5

    def decode(self, x_BTD):
        """``[B, T, D] -> [B, T, V]``."""
        return x_BTD @ self.input_embedding[...].T * self.edits.readout


class Gemma(nnx.Module):
    """Einsum layouts, grouped queries, gated feed-forward, scaled tied embeddings; in NNX."""

    def __init__(self, width: int, depth: int, edits: Edits, rngs: nnx.Rngs):
        self.embedder = Embedder(width, edits, rngs)
        self.layers = nnx.List([GemmaBlock(width, edits, rngs) for _ in range(depth)])
        self.final_norm = RMSNorm(width)

    def __call__(self, tokens_BT):
        x = self.embedder.encode(tokens_BT)
        for layer in self.layers:
            x = layer(x)
        return self.embedder.decode(self.final_norm(x))
