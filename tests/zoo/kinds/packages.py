"""Models of packages on PyPI: their own source, in which an edit puts the multipliers, and nothing else, at its places.

Tried with transformers 4.57.6 (its last release with Flax) and diffusers 0.35.2.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import linecache
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..edits import BASE_WIDTH
from .cases import Kind
from .scales import Scales

Edit = tuple[str, str]  # a regular expression, and what replaces it; {} is the multiplier of the branch
_SUM, _SUM_BEHIND = (r"residual \+ (\w+)\b", r"residual + {} * \1"), (r"\b(\w+) \+ residual\b", r"{} * \1 + residual")


def edited(name: str, edits: Sequence[Edit], e: Scales) -> types.ModuleType:
    """The module ``name`` with ``edits`` in its source; ``E`` is ``e`` there.

    Every replaced ``{}`` is the multiplier of a branch of its own.
    """
    original = importlib.import_module(name)
    source, number = inspect.getsource(original), itertools.count()
    source = source.replace("a_max=", "max=")  # a name that NumPy's interface in JAX has lost

    def replaced(match: re.Match[str], new: str) -> str:
        return match.expand(new.replace("{}", f"E.branch('sum_{next(number)}')" if "{}" in new else "{}"))

    for old, new in edits:
        source, count = re.subn(old, functools.partial(replaced, new=new), source)
        assert count, f"{name} has no {old}"
    module = types.ModuleType(f"{name}_edited")
    module.__dict__.update(__package__=original.__package__, __file__=module.__name__, E=e)
    sys.modules[module.__name__] = module  # dataclasses look there
    linecache.cache[module.__name__] = (len(source), None, source.splitlines(keepends=True), module.__name__)
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    if hasattr(original, "dot_product_attention_weights"):
        module.dot_product_attention_weights = _scaled(original.dot_product_attention_weights, e)
    return module


def _scaled(call: Callable[..., Any], e: Scales) -> Callable[..., Any]:
    """Attention whose 1/sqrt(d) is turned into the rule's where the head dimension grows."""

    def scaled(query: jax.Array, *args: Any, **options: Any) -> Any:
        d = query.shape[-1]
        return call(query * (e.heads(d) * d**0.5 if d != BASE_WIDTH // 2 or e.width == BASE_WIDTH else 1.0), *args, **options)

    return scaled


def _transformers(
    name: str, module: str, edits: Sequence[Edit], config: Callable[[Scales], Mapping[str, Any]], x: Any, output: Any = "logits",
    whole: bool = True, **arguments: Any,
) -> tuple[Callable[[Sequence[Edit]], Kind], Sequence[Edit]]:  # fmt: skip
    def with_edits(edits: Sequence[Edit]) -> Kind:
        def make(e: Scales) -> Any:
            source = edited(f"transformers.models.{name}.modeling_flax_{name}", edits, e)
            own = config(e)
            class_of = next(value for key, value in vars(source).items() if key.endswith("Config") and key.lower().startswith(
                name.replace("_", "")[:4]))  # fmt: skip
            return getattr(source, module)(class_of(**own))

        return Kind(make, x, None, arguments={"output": output, **arguments})

    return with_edits, edits


def _heads(e: Scales, fixed: bool) -> int:
    return 2 if fixed else e.width // 8


IDS = jnp.zeros((2, 6), jnp.int32)
ONES = jnp.ones((2, 6), jnp.int32)
TEXT = (IDS, ONES, IDS)  # input, mask, positions
PAIR = (IDS, ONES, IDS, ONES, IDS, IDS)
_TIED = (r"lm_logits = self\.lm_head(.*)\n", r"lm_logits = E.readout() * self.lm_head\1\n")


def _gpt2(fixed: bool = False, tied: bool = True, cls: Any = None) -> Any:
    config = lambda e: dict(
        vocab_size=11, n_positions=8, n_embd=e.width, n_layer=e.depth, n_head=_heads(e, fixed), tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return _transformers("gpt2", "FlaxGPT2LMHeadModule", [_SUM_BEHIND, _SUM, _TIED], config, TEXT)


def _bert(name: str, cls: str, fixed: bool = False, **more: Any) -> Any:
    config = lambda e: dict(
        vocab_size=11, hidden_size=e.width, num_hidden_layers=e.depth, num_attention_heads=_heads(e, fixed),
        intermediate_size=4 * e.width, max_position_embeddings=8, type_vocab_size=2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **more,
    )  # fmt: skip
    edits = [
        (r"self\.LayerNorm\(hidden_states \+ (\w+)\)", r"self.LayerNorm({} * hidden_states + \1)"),
        (r"hidden_states = self\.decoder(.*)\n", r"hidden_states = E.readout() * self.decoder\1\n"),
    ]
    # The hidden layer of the head, in front of a norm, needs no edit.
    return _transformers(name, cls, edits, config, (IDS, ONES, IDS, IDS, None))


def _t5(tied: bool = True, ratio: int = 1) -> Any:
    config = lambda e: dict(
        vocab_size=11, d_model=e.width, d_kv=8, d_ff=4 * e.width, num_layers=e.depth, num_decoder_layers=e.depth,
        num_heads=e.width // 8, tie_word_embeddings=tied, dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    edits = [
        (r"hidden_states \+ self\.dropout\(", r"hidden_states + {} * self.dropout("),
        (r"self\.model_dim\*\*-0\.5", str(BASE_WIDTH) + "**-0.5"), _TIED,
    ]  # fmt: skip
    return _transformers("t5", "FlaxT5ForConditionalGenerationModule", edits, config, (IDS, ONES, IDS, ONES))


def _bart(name: str, cls: str, scaled: bool = False, fixed: bool = False) -> Any:
    config = lambda e: dict(
        vocab_size=11, d_model=e.width, encoder_layers=e.depth, decoder_layers=e.depth, max_position_embeddings=8,
        encoder_attention_heads=_heads(e, fixed), decoder_attention_heads=_heads(e, fixed), encoder_ffn_dim=4 * e.width,
        decoder_ffn_dim=4 * e.width, dropout=0.0, scale_embedding=scaled, pad_token_id=1,
    )  # fmt: skip
    edits = [_SUM, _TIED]
    if scaled:
        edits += [(r"math\.sqrt\((embed_dim|self\.config\.d_model)\)", f"E.embedding() * {BASE_WIDTH}**0.5")]
    return _transformers(name, cls, edits, config, PAIR)


def _opt(post: bool = False) -> Any:
    config = lambda e: dict(
        vocab_size=11, hidden_size=e.width, num_hidden_layers=e.depth, ffn_dim=4 * e.width, max_position_embeddings=8,
        num_attention_heads=e.width // 8, word_embed_proj_dim=e.width, dropout=0.0, do_layer_norm_before=not post, pad_token_id=1,
    )  # fmt: skip
    return _transformers("opt", "FlaxOPTForCausalLMModule", [_SUM, _TIED], config, TEXT)


def _decoder(name: str, cls: str, edits: Sequence[Edit], **names: str) -> Any:
    config = lambda e: dict(
        vocab_size=11, hidden_size=e.width, num_hidden_layers=e.depth, num_attention_heads=e.width // 8,
        intermediate_size=2 * e.width, max_position_embeddings=32, num_key_value_heads=e.width // 16, head_dim=8,
    )  # fmt: skip
    return _transformers(name, cls, edits, config, TEXT)


def _gptj() -> Any:
    config = lambda e: dict(
        vocab_size=11, n_positions=8, n_embd=e.width, n_layer=e.depth, n_head=e.width // 8, rotary_dim=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
    )  # fmt: skip
    edits = [
        (r"attn_output \+ feed_forward_hidden_states \+ residual",
         "{} * attn_output + {} * feed_forward_hidden_states + residual"), _TIED,
    ]  # fmt: skip
    return _transformers("gptj", "FlaxGPTJForCausalLMModule", edits, config, TEXT)


def _gpt_neo() -> Any:
    config = lambda e: dict(
        vocab_size=11, max_position_embeddings=8, hidden_size=e.width, num_layers=e.depth, num_heads=e.width // 8,
        attention_types=[[["global", "local"], e.depth // 2]], window_size=4, resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    return _transformers("gpt_neo", "FlaxGPTNeoForCausalLMModule", [_SUM_BEHIND, _SUM, _TIED], config, TEXT)


def _vit(name: str = "vit", cls: str = "FlaxViTForImageClassificationModule", fixed: bool = False) -> Any:
    config = lambda e: dict(
        hidden_size=e.width, num_hidden_layers=e.depth, num_attention_heads=_heads(e, fixed), intermediate_size=4 * e.width,
        image_size=8, patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=4,
    )  # fmt: skip
    edits = [
        (r"hidden_states = hidden_states \+ attention_output", "hidden_states = {} * hidden_states + attention_output"),
        (r"attention_output = attention_output \+ hidden_states", "attention_output = {} * attention_output + hidden_states"),
        (r"logits = self\.classifier(.*)\n", r"logits = E.readout() * self.classifier\1\n"),
    ]  # fmt: skip
    return _transformers(name, cls, edits, config, jnp.zeros((2, 8, 8, 3)))


def _whisper() -> Any:
    config = lambda e: dict(
        vocab_size=11, d_model=e.width, encoder_layers=e.depth, decoder_layers=e.depth, num_mel_bins=6, dropout=0.0,
        encoder_attention_heads=e.width // 8, decoder_attention_heads=e.width // 8, encoder_ffn_dim=4 * e.width,
        decoder_ffn_dim=4 * e.width, max_source_positions=8, max_target_positions=8, pad_token_id=1,
    )  # fmt: skip
    x = (jnp.zeros((2, 6, 16)), IDS, ONES, IDS)
    return _transformers("whisper", "FlaxWhisperForConditionalGenerationModule", [_SUM, _TIED], config, x)


_SOURCES: Mapping[str, Any] = {
    "gpt2": _gpt2(), "gpt2_heads": _gpt2(fixed=True), "gpt2_untied": _gpt2(tied=False),
    "bert": _bert("bert", "FlaxBertForMaskedLMModule"), "bert_heads": _bert("bert", "FlaxBertForMaskedLMModule", fixed=True),
    "bert_untied": _bert("bert", "FlaxBertForMaskedLMModule", tie_word_embeddings=False),
    "roberta": _bert("roberta", "FlaxRobertaForMaskedLMModule", pad_token_id=1),
    "t5": _t5(), "t5_untied": _t5(tied=False),
    "bart": _bart("bart", "FlaxBartForConditionalGenerationModule"),
    "bart_heads": _bart("bart", "FlaxBartForConditionalGenerationModule", fixed=True),
    "marian": _bart("marian", "FlaxMarianMTModule", scaled=True),
    "pegasus": _bart("pegasus", "FlaxPegasusForConditionalGenerationModule", scaled=True),
    "blenderbot": _bart("blenderbot", "FlaxBlenderbotForConditionalGenerationModule"),
    "opt": _opt(), "opt_post": _opt(post=True),
    "llama": _decoder("llama", "FlaxLlamaForCausalLMModule", [_SUM, _TIED]),
    "mistral": _decoder("mistral", "FlaxMistralForCausalLMModule", [_SUM, _TIED]),
    "gptj": _gptj(), "gpt_neo": _gpt_neo(), "vit": _vit(), "vit_heads": _vit(fixed=True), "whisper": _whisper(),
}  # fmt: skip


def package_kinds() -> dict[str, Kind]:
    """Each model with the multipliers."""
    return {f"packages/{name}": make(edits) for name, (make, edits) in _SOURCES.items()}


def unmodified(name: str) -> Kind:
    """A model as it is published."""
    return _SOURCES[name.removeprefix("packages/")][0]([])
