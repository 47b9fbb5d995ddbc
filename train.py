"""Trains a network with Depth-muP, as ``depthmup train`` does: python train.py --config=configs/digits.py"""

from depthmup_flax.commands.app import run

if __name__ == "__main__":
    run("train")
