"""A search with Optuna: the periods and the rate that reach the target soonest, on the clock.

Needs `pip install optuna`. `sdfeel plan` does such a search on its own, and stops bad trials early.
"""

import optuna

import sdfeel

TARGET = 0.7


def seconds_to_target(trial: optuna.Trial) -> float:
    experiment = {
        "network": {"clients": 8, "servers": 4},
        "model": "logistic",
        "scheme": {
            "name": "sd-feel",
            "tau1": trial.suggest_int("tau1", 1, 10),
            "alpha": trial.suggest_int("alpha", 1, 3),
        },
        "training": {
            "iterations": 60,
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.5, log=True),
            "target_accuracy": TARGET,
        },
        "evaluation": {"every": 1},
    }
    for event in sdfeel.Run(experiment):
        if isinstance(event, sdfeel.Evaluated):
            trial.report(event.accuracy or 0.0, event.number)
            if (event.accuracy or 0.0) >= TARGET:
                return event.seconds
    raise optuna.TrialPruned  # it never got there: no number would be fair


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(seconds_to_target, n_trials=8)
print(f"{TARGET:.0%} after {study.best_value:.3f} virtual seconds with {study.best_params}")
