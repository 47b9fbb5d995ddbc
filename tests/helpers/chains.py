"""A residual network as two functions, which compiles fast, and the ways to get it wrong that the check must find."""

import dataclasses
import math

import jax
import jax.numpy as jnp

import depthmup_flax as dm
from depthmup_flax.check import Network, coord_check
from depthmup_flax.rule.info_trees import path_name

RULE = dm.get_parametrization(branch_multiplier=0.5)
BASE_WIDTH, BASE_DEPTH = 8, 4
X = jax.random.normal(jax.random.key(0), (4, 12))
Y = jnp.arange(4)
WIDTHS, DEPTHS = (64, 256), (16, 64)


def infos(shapes, roles, m, r, inside=("blocks",)):
    """`ParamInfo` of a tree of shapes; ``roles`` and ``inside``, the branches, by the beginnings of paths."""

    def one(path, shape):
        path = path_name(path)
        role = dm.Role.VECTOR if len(shape) == 1 else next(roles[name] for name in roles if path.startswith(name))
        widths = {"width_in": m if role in (dm.Role.HIDDEN, dm.Role.OUTPUT) else 1.0}
        widths["width_out"] = 1.0 if role is dm.Role.OUTPUT else m
        branch = {"in_branch": True, "depth_ratio": r} if path.startswith(tuple(inside)) else {}
        return dm.ParamInfo(role, shape, model_width=m, decay=role is not dm.Role.VECTOR, **widths, **branch)

    return jax.tree_util.tree_map_with_path(one, shapes, is_leaf=lambda shape: type(shape) is tuple)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Blocks ``h + a * W relu(norm(h))`` of one stacked weight, between a stem and a readout."""

    width: int
    depth: int
    branch_multiplier: bool = True
    readout_multiplier: bool = True
    depth_init: bool = False  # 1/sqrt(2 L), as in GPT-2
    fixed_std: bool = False
    relu_last: bool = False
    norm_last: bool = False  # behind the branch multiplier, which it cancels
    shared: bool = False  # one weight for all blocks
    readout_std: float | None = BASE_WIDTH**-0.5  # None: falls with width

    @property
    def shapes(self):
        """Shapes of the parameters."""
        n = self.width
        return {
            "blocks": {"dense": {"kernel": (n, n) if self.shared else (self.depth, n, n)}},
            "head": {"kernel": (n, 10)},
            "stem": {"kernel": (12, n)},
        }

    def init(self, key):
        """All parameters from one draw of random numbers."""
        n, depth = self.width, 1 if self.shared else self.depth
        std = (BASE_WIDTH if self.fixed_std else n) ** -0.5 / (math.sqrt(2 * depth) if self.depth_init else 1.0)
        z = jax.random.uniform(key, (12 + depth * n + 10, n), minval=-(3**0.5), maxval=3**0.5)  # of variance 1
        head_std = n**-0.5 if self.readout_std is None else self.readout_std
        return {
            "blocks": {"dense": {"kernel": std * z[12:-10].reshape(self.shapes["blocks"]["dense"]["kernel"])}},
            "head": {"kernel": head_std * z[-10:].T},
            "stem": {"kernel": 12**-0.5 * z[:12]},
        }

    def apply(self, params, x=X):
        """The outputs, and the activations of the stem, the blocks and their layers."""
        multiplier = RULE.residual_multiplier(self.depth / BASE_DEPTH if self.branch_multiplier else 1.0)

        norm = lambda h: h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True))

        def block(h, kernel):
            y = norm(h)
            y = (y if self.relu_last else jax.nn.relu(y)) @ (
                params["blocks"]["dense"]["kernel"] if self.shared else kernel
            )
            step = multiplier * (jax.nn.relu(y) if self.relu_last else y)
            h = h + (norm(step) if self.norm_last else step)
            return h, (h, y)

        stem = x @ params["stem"]["kernel"]
        h, (blocks, dense) = jax.lax.scan(
            block, stem, None if self.shared else params["blocks"]["dense"]["kernel"], length=self.depth
        )
        factor = RULE.readout_multiplier(self.width / BASE_WIDTH) if self.readout_multiplier else 1.0
        return factor * h @ params["head"]["kernel"], {"stem": stem, "blocks": blocks, "blocks/dense": dense}

    def info(self):
        """The roles."""
        roles = {"blocks": dm.Role.HIDDEN, "head": dm.Role.OUTPUT, "stem": dm.Role.INPUT}
        return infos(self.shapes, roles, self.width / BASE_WIDTH, self.depth / BASE_DEPTH)

    def network(self, make_optimizer=None, source=None):
        """With ``make_optimizer(info)``, or the rule's own; ``source(self)`` is for the audit."""
        info = self.info()
        optimizer = make_optimizer(info) if make_optimizer else dm.adamw(3e-3, info, RULE)
        return Network(self.init, self.apply, info, optimizer, source and source(self))


def check(axis, *, make_optimizer=None, source=None, **wrong):
    """The report on chains over one axis."""
    build = lambda width, depth: Chain(width, depth, **wrong).network(make_optimizer, source)
    tried = {"widths": WIDTHS} if axis == "width" else {"depths": DEPTHS}
    return coord_check(build, Y, rule=RULE, width=64, depth=4, **tried)


def causes(report):
    """Name -> paths."""
    return {cause.name: cause.paths for cause in report.causes}


def failed(report, kind, name):
    """The exponent, over the rule's, of the quantity of this kind and name, which failed."""
    mine = [q for q in report.failures if (q.kind, q.name) == (kind, name)]
    assert mine, report.details()
    return mine[0].fit.slope
