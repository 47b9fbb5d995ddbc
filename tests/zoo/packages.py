"""Models of Hugging Face's transformers: their own source, in which edits put multipliers at their places, no more.

Tried with transformers 4.57.6, the last release with Flax.
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

from .cases import Kind
from .scales import Scales
from .settings import BASE_WIDTH

HEAD_DIM = 8  # where the number of heads grows; the same at the base width where the dimension grows
Edit = tuple[str, str]  # a regular expression, and what replaces it; {} is the multiplier of a branch


def edited(name: str, edits: Sequence[Edit], e: Scales) -> types.ModuleType:
    """The module ``name`` with ``edits`` in its source; ``E`` is ``e`` there, and each place is a branch of its own."""
    original = importlib.import_module(name)
    source, number = inspect.getsource(original), itertools.count()
    source = source.replace("a_max=", "max=")  # JAX has lost this name

    def replaced(match: re.Match[str], new: str) -> str:
        return match.expand(re.sub(r"\{\}", lambda _: f"E.branch('sum_{next(number)}')", new))

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
        grows = d != HEAD_DIM or e.width == BASE_WIDTH
        return call(query * (e.heads(d) * d**0.5 if grows else 1.0), *args, **options)

    return scaled


class Source:
    """A model of transformers with its edits."""

    def __init__(
        self, name: str, module: str, edits: Sequence[Edit], config: Callable[[Scales], Mapping[str, Any]], x: Any
    ):
        self.name, self.module, self.edits, self.config, self.x = name, module, edits, config, x

    def kind(self, edits: Sequence[Edit]) -> Kind:
        """The model with these edits."""

        def make(e: Scales) -> Any:
            source = edited(f"transformers.models.{self.name}.modeling_flax_{self.name}", edits, e)
            stem = self.name.replace("_", "")
            config = next(v for k, v in vars(source).items() if k.lower() == f"{stem}config")
            return getattr(source, self.module)(config(**self.config(e)))

        return Kind(make, self.x, None, arguments={"output": "logits"})


IDS, ONES = jnp.zeros((2, 6), jnp.int32), jnp.ones((2, 6), jnp.int32)
TEXT = (IDS, ONES, IDS)  # tokens, mask, positions
PAIR = (IDS, ONES, IDS, ONES, IDS, IDS)
_SUM, _SUM_BEHIND = (r"residual \+ (\w+)\b", r"residual + {} * \1"), (r"\b(\w+) \+ residual\b", r"{} * \1 + residual")
_LOGITS = (r"lm_logits = self\.lm_head(.*)\n", r"lm_logits = E.readout() * self.lm_head\1\n")
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "dropout": 0.0}
_NO_DROPOUT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_rate": 0.0}


def _heads(e: Scales, fixed: bool) -> int:
    return BASE_WIDTH // HEAD_DIM if fixed else e.width // HEAD_DIM


def _gpt(name: str, module: str, edits: Sequence[Edit], fixed: bool = False, **more: Any) -> Source:
    config = lambda e: {
        "vocab_size": 11, "n_positions": 8, "n_embd": e.width, "n_layer": e.depth, "n_head": _heads(e, fixed),
        **_NO_DROPOUT, **more,
    }  # fmt: skip
    return Source(name, module, [*edits, _LOGITS], config, TEXT)


def _encoder(e: Scales, fixed: bool = False) -> dict[str, Any]:
    return {
        "hidden_size": e.width, "num_hidden_layers": e.depth, "num_attention_heads": _heads(e, fixed),
        "intermediate_size": 4 * e.width, **_NO_DROPOUT,
    }  # fmt: skip


def _bert(name: str, module: str, fixed: bool = False, **more: Any) -> Source:
    config = lambda e: (
        _encoder(e, fixed) | {"vocab_size": 11, "max_position_embeddings": 8, "type_vocab_size": 2} | more
    )
    edits = [
        (r"self\.LayerNorm\(hidden_states \+ (\w+)\)", r"self.LayerNorm({} * hidden_states + \1)"),
        (r"hidden_states = self\.decoder(.*)\n", r"hidden_states = E.readout() * self.decoder\1\n"),
    ]
    return Source(name, module, edits, config, (IDS, ONES, IDS, IDS, None))


def _t5(tied: bool = True) -> Source:
    config = lambda e: {
        "vocab_size": 11, "d_model": e.width, "d_kv": HEAD_DIM, "d_ff": 4 * e.width, "num_layers": e.depth,
        "num_decoder_layers": e.depth, "num_heads": _heads(e, False), "tie_word_embeddings": tied,
        "decoder_start_token_id": 0, **_NO_DROPOUT,
    }  # fmt: skip
    edits = [
        (r"hidden_states \+ self\.dropout\(", "hidden_states + {} * self.dropout("),
        (r"self\.model_dim\*\*-0\.5", f"{BASE_WIDTH}**-0.5"),
        _LOGITS,
    ]
    return Source("t5", "FlaxT5ForConditionalGenerationModule", edits, config, (IDS, ONES, IDS, ONES))


def _two_stacks(e: Scales, fixed: bool = False) -> dict[str, Any]:
    return {
        "vocab_size": 11, "d_model": e.width, "encoder_layers": e.depth, "decoder_layers": e.depth, "pad_token_id": 1,
        "encoder_attention_heads": _heads(e, fixed), "decoder_attention_heads": _heads(e, fixed),
        "encoder_ffn_dim": 4 * e.width, "decoder_ffn_dim": 4 * e.width, "max_position_embeddings": 8, **_NO_DROPOUT,
    }  # fmt: skip


def _bart(name: str, module: str, scaled: bool = False, fixed: bool = False) -> Source:
    edits = [_SUM, _LOGITS]
    if scaled:
        edits += [(r"math\.sqrt\((embed_dim|self\.config\.d_model)\)", f"E.embedding() * {BASE_WIDTH}**0.5")]
    return Source(name, module, edits, lambda e: _two_stacks(e, fixed) | {"scale_embedding": scaled}, PAIR)


def _whisper() -> Source:
    config = lambda e: _two_stacks(e) | {"num_mel_bins": 6, "max_source_positions": 8, "max_target_positions": 8}
    x = (jnp.zeros((2, 6, 16)), IDS, ONES, IDS)
    return Source("whisper", "FlaxWhisperForConditionalGenerationModule", [_SUM, _LOGITS], config, x)


def _opt(post: bool = False) -> Source:
    config = lambda e: _encoder(e) | {
        "vocab_size": 11, "ffn_dim": 4 * e.width, "max_position_embeddings": 8, "word_embed_proj_dim": e.width,
        "do_layer_norm_before": not post, "pad_token_id": 1,
    }  # fmt: skip
    return Source("opt", "FlaxOPTForCausalLMModule", [_SUM, _LOGITS], config, TEXT)


def _llama(name: str, module: str) -> Source:
    more = {"vocab_size": 11, "max_position_embeddings": 32, "head_dim": HEAD_DIM}
    config = lambda e: _encoder(e) | more | {"num_key_value_heads": _heads(e, False) // 2}
    return Source(name, module, [_SUM, _LOGITS], config, TEXT)


def _gpt_neo() -> Source:
    config = lambda e: {
        "vocab_size": 11, "max_position_embeddings": 8, "hidden_size": e.width, "num_layers": e.depth,
        "num_heads": _heads(e, False), "attention_types": [[["global", "local"], e.depth // 2]], "window_size": 4,
        "resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip
    return Source("gpt_neo", "FlaxGPTNeoForCausalLMModule", [_SUM_BEHIND, _SUM, _LOGITS], config, TEXT)


def _vit(fixed: bool = False) -> Source:
    config = lambda e: _encoder(e, fixed) | {"image_size": 8, "patch_size": 4, "num_labels": 4}
    edits = [
        (r"hidden_states = hidden_states \+ attention_output", "hidden_states = {} * hidden_states + attention_output"),
        (r"= attention_output \+ hidden_states", "= {} * attention_output + hidden_states"),
        (r"logits = self\.classifier(.*)\n", r"logits = E.readout() * self.classifier\1\n"),
    ]
    return Source("vit", "FlaxViTForImageClassificationModule", edits, config, jnp.zeros((2, 8, 8, 3)))


_PARALLEL = (
    r"attn_output \+ feed_forward_hidden_states \+ residual",
    "{} * attn_output + {} * feed_forward_hidden_states + residual",
)
_GPT2, _MLM = "FlaxGPT2LMHeadModule", "FlaxBertForMaskedLMModule"
_BART = "FlaxBartForConditionalGenerationModule"
SOURCES: Mapping[str, Source] = {
    "gpt2": _gpt("gpt2", _GPT2, [_SUM_BEHIND, _SUM]),
    "gpt2_heads": _gpt("gpt2", _GPT2, [_SUM_BEHIND, _SUM], True),
    "gpt2_untied": _gpt("gpt2", _GPT2, [_SUM_BEHIND, _SUM], tie_word_embeddings=False),
    "gptj": _gpt("gptj", "FlaxGPTJForCausalLMModule", [_PARALLEL], rotary_dim=4, tie_word_embeddings=False),
    "bert": _bert("bert", _MLM), "bert_heads": _bert("bert", _MLM, True),
    "bert_untied": _bert("bert", _MLM, tie_word_embeddings=False),
    "roberta": _bert("roberta", "FlaxRobertaForMaskedLMModule", pad_token_id=1),
    "t5": _t5(), "t5_untied": _t5(tied=False),
    "bart": _bart("bart", _BART), "bart_heads": _bart("bart", _BART, fixed=True),
    "marian": _bart("marian", "FlaxMarianMTModule", scaled=True),
    "pegasus": _bart("pegasus", "FlaxPegasusForConditionalGenerationModule", scaled=True),
    "blenderbot": _bart("blenderbot", "FlaxBlenderbotForConditionalGenerationModule"),
    "whisper": _whisper(), "opt": _opt(), "opt_post": _opt(post=True), "gpt_neo": _gpt_neo(),
    "llama": _llama("llama", "FlaxLlamaForCausalLMModule"),
    "mistral": _llama("mistral", "FlaxMistralForCausalLMModule"),
    "vit": _vit(), "vit_heads": _vit(fixed=True),
}  # fmt: skip


def package_kinds() -> dict[str, Kind]:
    """Each model with its multipliers."""
    return {f"packages/{name}": source.kind(source.edits) for name, source in SOURCES.items()}


def unmodified(name: str) -> Kind:
    """A model as it is published."""
    return SOURCES[name.removeprefix("packages/")].kind([])
