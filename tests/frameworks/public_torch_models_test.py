"""Public torch modules, unmodified, under the audit: ok, in each of their libraries that is installed."""

import copy
import functools
import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchax") is None:
    pytest.skip("could not import 'torchax'", allow_module_level=True)

import depthmup_flax as dm  # noqa: E402

TOKENS = {"input_ids": torch.arange(16).reshape(2, 8)}
PIXELS = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
LLAMA = {"num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 32}


def transformer(name, **options):
    """A model of Hugging Face's transformers, of any size; heads have 16 entries."""

    def make(width, depth):
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": depth}
        sizes |= {"num_attention_heads": width // 16} | options
        if "num_key_value_heads" in options:
            sizes["num_key_value_heads"] = width // 16
        config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation="eager")
        return getattr(transformers, f"{name}ForCausalLM")(config)

    return make, TOKENS, "logits"


def gpt2(width, depth):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": width, "n_layer": depth, "n_head": width // 16, "vocab_size": 64, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_implementation="eager"))


def vit(width, depth):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth}
    sizes |= {"num_attention_heads": width // 16, "image_size": 32, "patch_size": 8, "num_labels": 5}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, attn_implementation="eager"))


def timm_vit(width, depth):
    layers = pytest.importorskip("timm.models.vision_transformer")
    options = {"img_size": 32, "patch_size": 8, "num_classes": 5}
    return layers.VisionTransformer(embed_dim=width, depth=depth, num_heads=width // 16, **options)


def timm_convnext(width, depth):
    layers = pytest.importorskip("timm.models.convnext")
    return layers.ConvNeXt(num_classes=5, depths=(depth,) * 4, dims=tuple(width * 2**stage for stage in range(4)))


def dit(width, depth):
    """The block's condition is a sum of embeddings of its own; the last layer reads that of the first."""
    diffusers = pytest.importorskip("diffusers")
    sizes = {"num_attention_heads": width // 16, "attention_head_dim": 16, "num_layers": depth, "sample_size": 8}
    channels = {"in_channels": 4, "out_channels": 4, "num_embeds_ada_norm": 10}
    return diffusers.DiTTransformer2DModel(**sizes, **channels, patch_size=2)


def encoder(width, depth):
    layer = torch.nn.TransformerEncoderLayer(width, width // 16, 2 * width, batch_first=True, norm_first=True)
    stack = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Linear(5, width), stack, torch.nn.LayerNorm(width), torch.nn.Linear(width, 3))


LATENTS = {
    "hidden_states": torch.linspace(-1, 1, 512).reshape(2, 4, 8, 8),
    "timestep": torch.tensor([3, 5]),
    "class_labels": torch.tensor([1, 2]),
}
MODELS = {
    "transformers GPT-2": (gpt2, TOKENS, "logits"),
    "transformers Llama": transformer("Llama", **LLAMA),
    "transformers Qwen 3": transformer("Qwen3", head_dim=16, **LLAMA),
    "transformers Gemma 2": transformer("Gemma2", head_dim=16, query_pre_attn_scalar=16, pad_token_id=0, **LLAMA),
    "transformers GPT-NeoX": transformer("GPTNeoX", vocab_size=64, max_position_embeddings=32),
    "transformers ViT": (vit, PIXELS, "logits"),
    "timm ViT": (timm_vit, PIXELS, None),
    "timm ConvNeXt": (timm_convnext, PIXELS, None),
    "diffusers DiT": (dit, LATENTS, "sample"),
    "torch TransformerEncoder": (encoder, torch.ones(2, 4, 5), None),
}


def audited(name):
    make, inputs, output = MODELS[name]
    torch.manual_seed(0)
    return dm.audit(make(64, 4), make(16 if "timm Conv" in name else 32, 2), inputs, output=output)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_public_torch_model_is_ok_as_it_is(name):
    audit = audited(name)
    assert audit.ok, audit.corrections


class Times(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def gpt2_by_hand(model, m, r):
    for block in model.transformer.h:
        block.attn.resid_dropout = block.mlp.dropout = Times(r**-0.5)
    model.transformer.ln_f = torch.nn.Sequential(model.transformer.ln_f, Times(1 / m))


def timm_vit_by_hand(model, m, r):
    for block in model.blocks:
        block.ls1 = block.ls2 = Times(r**-0.5)
    model.norm = torch.nn.Sequential(model.norm, Times(1 / m))


def llama_by_hand(model, m, r):
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda module, inputs, output: output * r**-0.5)
        layer.self_attn.register_forward_hook(lambda module, inputs, output: (output[0] * r**-0.5, *output[1:]))
    model.model.norm = torch.nn.Sequential(model.model.norm, Times(1 / m))


BY_HAND = {
    "transformers GPT-2": (gpt2_by_hand, "transformer.h."),
    "timm ViT": (timm_vit_by_hand, "blocks."),
    "transformers Llama": (llama_by_hand, "model.layers."),
}


def course(model, name, optimizer, steps=50):
    inputs, output = MODELS[name][1:]
    model.eval()
    result = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(inputs) if output is None else model(**inputs)[output]
        labels = torch.arange(logits[..., 0].numel()) % 5
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels)
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("width", "depth"), [(64, 4), (128, 6)])
@pytest.mark.parametrize("name", BY_HAND)
def test_groups_train_as_a_public_model_with_the_factors_written_into_it(name, width, depth):
    make, inputs, output = MODELS[name]
    (edit, branches), m, r = BY_HAND[name], width / 32, depth / 2
    torch.manual_seed(0)
    model, base = make(width, depth), make(32, 2)
    audit = dm.audit(model, base, inputs, output=output)
    for optimizer, rate in (("adam", 1e-3), ("sgd", 1e-3)):
        plain, hand = copy.deepcopy(model), copy.deepcopy(model)
        dm.rescale_init_(plain, base, audit)
        groups = dm.param_groups(
            plain,
            audit,
            learning_rate=rate,
            weight_decay=0.1,
            optimizer=optimizer,
            mask={name: parameter.ndim > 1 for name, parameter in model.named_parameters()},
        )
        # Initial values of one constant deviation, but for the depth of GPT-2's last matrices.
        own = []
        for path, parameter in hand.named_parameters():
            is_inside = path.startswith(branches)
            is_matrix = parameter.ndim > 1
            if is_inside and is_matrix:
                parameter.data.mul_(m**-0.5 * (r**0.5 if "c_proj" in path else 1.0))
            update = (r**-0.5 if is_inside else 1.0) / (m if is_inside and is_matrix else 1.0)
            gradient = (1.0 if path == "head.bias" else m) * (r**0.5 if is_inside else 1.0)
            factor = update if optimizer == "adam" else update * gradient
            group = {"params": [parameter], "lr": rate * factor, "weight_decay": 0.1 / factor if is_matrix else 0.0}
            own.append(group | ({"eps": 1e-8 / gradient} if optimizer == "adam" else {}))
        edit(hand, m, r)
        of = torch.optim.AdamW if optimizer == "adam" else functools.partial(torch.optim.SGD, momentum=0.9)
        ours, theirs = course(plain, name, of(groups)), course(hand, name, of(own))
        assert ours == pytest.approx(theirs, abs=1e-5)
        assert ours[-1] < ours[0]


def change_of_output(name, width, depth, seed, *, ours):
    """Root mean square, after five steps of Adam."""
    make, inputs, output = MODELS[name]
    torch.manual_seed(seed)
    model, base = make(width, depth), make(64, 4)
    groups = model.parameters()
    if ours:
        audit = dm.audit(model, base, inputs, output=output)
        dm.rescale_init_(model, base, audit)
        groups = dm.param_groups(model, audit, learning_rate=2**-8)
    optimizer = torch.optim.AdamW(groups, lr=2**-8, weight_decay=0.0)

    def outputs():
        with torch.no_grad():
            return model(inputs) if output is None else model(**inputs)[output]

    model.eval()
    before = outputs()
    course(model, name, optimizer, steps=5)
    return (outputs() - before).square().mean().sqrt().item()


def exponent(name, sizes, *, ours):
    """Of the change of the outputs over the product of width and depth; two seeds."""
    changes = [np.mean([change_of_output(name, *size, seed, ours=ours) for seed in range(2)]) for size in sizes]
    return np.polyfit(np.log2([width * depth for width, depth in sizes]), np.log2(changes), 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_the_change_of_a_public_models_outputs_depends_on_neither_width_nor_depth(name):
    widths, depths = ((64, 4), (128, 4), (256, 4)), ((64, 4), (64, 8), (64, 16))
    assert abs(exponent(name, widths, ours=True)) < 0.2
    assert abs(exponent(name, depths, ours=True)) < 0.2
    assert exponent(name, widths, ours=False) > 0.5


if __name__ == "__main__":
    for name in MODELS:
        try:
            print(f"{name}: {audited(name).verdict}", flush=True)
        except Exception as error:  # of libraries that are absent, or a bug
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
