"""An ensemble as an estimator of scikit-learn: a pipeline, a grid search over methods, and intervals.

python examples/sklearn_table.py
"""

from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import multitudes as mt
from multitudes.integrations.sklearn import EnsembleClassifier, EnsembleRegressor

SMALL = {"hidden": (32,), "epochs": 20, "batch": 64, "lr": 0.01, "random_state": 0}


def main() -> dict[str, float]:
    x, y = load_breast_cancer(return_X_y=True)
    line = make_pipeline(MinMaxScaler(), EnsembleClassifier(**SMALL))
    methods = {"ensembleclassifier__method": [mt.BatchEnsemble(members=4), mt.Packed(members=4, alpha=2)]}
    search = GridSearchCV(line, methods, cv=2, scoring="neg_log_loss").fit(x, y)
    print(search.best_params_, search.best_score_)

    x, y = load_diabetes(return_X_y=True)
    model = EnsembleRegressor(mt.BatchEnsemble(members=4), **SMALL).fit(x[:300], y[:300])
    low, high = model.predict_interval(x[300:], level=0.9).T
    covered = float(((low < y[300:]) & (y[300:] < high)).mean())
    print("covered:", covered, "mean std:", model.predict_std(x[300:]).mean())
    return {"nll": -search.best_score_, "covered": covered}


if __name__ == "__main__":
    main()
