"""A sampler of Optuna proposes the hyperparameters of a small network; `dm.Study` trains each proposal with its seeds.

    pip install ".[report]" optuna
    python examples/optuna_search.py

Run again, it proposes the same, as the sampler has a seed, and reads the records in place of training.
"""

import math

import optuna

import depthmup_flax as dm

TRIALS, SEEDS = 6, 2


def main() -> None:
    """Searches on the proxy, and trains a deeper, wider network with the best values."""
    study = dm.Study("res_mlp", "digits", base=(32, 4), steps=200, workdir="runs/optuna", quiet=True)
    search = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    for _ in range(TRIALS):
        trial = search.ask()
        values = {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.1),
        }
        swept = study.sweep(seeds=SEEDS, **values)
        losses = [record[f"{swept.objective}_loss"] for record in swept.records]
        # A diverged run has no loss.
        loss = math.inf if None in losses else sum(losses) / len(losses)
        print(f"{loss:.4f}  {values}")
        search.tell(trial, loss)
    print(f"best: {search.best_params}")
    print(study.train(width=64, depth=8, **search.best_params)["test_accuracy"])


if __name__ == "__main__":
    main()
