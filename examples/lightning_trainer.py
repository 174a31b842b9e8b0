"""An ensemble in Lightning's Trainer: uncertainty scores in the log, and a checkpoint that `mt.load` reads.

python examples/lightning_trainer.py
"""

import tempfile
from pathlib import Path

import lightning
from torch.utils.data import DataLoader, Subset

import multitudes as mt
from multitudes import data, models
from multitudes.integrations.lightning import EnsembleModule, LogUncertainty


def main() -> dict[str, float]:
    train, test = data.fashion("train"), data.fashion("test")
    x = test.batch([0, 1])[0]
    ens = mt.ensemble(models.SmallCNN(channels=1), mt.Packed(members=4, alpha=2), x, seed=0)
    module = EnsembleModule(ens, lr=0.003)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=[LogUncertainty()],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        few = Subset(test, range(500))
        trainer.fit(module, DataLoader(train, batch_size=128, shuffle=True), DataLoader(few, batch_size=256))
        scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
        file = Path(folder) / "last.ckpt"
        trainer.save_checkpoint(file)
        loaded = mt.load(file, models.SmallCNN(channels=1))  # weights and JSON: no code of the file is run
    again = mt.score(mt.predict(loaded, few))
    for name, value in scores.items():
        print(f"{name:<28} {value:.4f}")
    print(f"{'accuracy, loaded':<28} {again['accuracy']:.4f}")
    return {**scores, "loaded": again["accuracy"]}


if __name__ == "__main__":
    main()
