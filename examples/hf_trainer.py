"""A BERT classifier as an ensemble in the Trainer of transformers, unchanged; then a LoRA ensemble on the same network.

python examples/hf_trainer.py
"""

import tempfile

import peft
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import multitudes as mt
from multitudes.integrations import hf

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Made-up sentences of eight words; word 7 occurs in three of four sentences of class 1."""
    ids = torch.randint(8, 50, (count, 8), generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % 2
    ids[(labels == 1) & (torch.arange(count) % 8 > 1), 3] = 7
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


def trained(ens: mt.Ensemble, lr: float, folder: str) -> dict[str, float]:
    """Trains and scores an ensemble as one would a single network."""
    net = hf.wrap(ens)
    settings = TrainingArguments(
        folder, num_train_epochs=4, per_device_train_batch_size=32, learning_rate=lr, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=0, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(net, settings, train_dataset=sentences(512, 0), eval_dataset=sentences(128, 1),
                      compute_metrics=net.compute_metrics)  # fmt: skip
    trainer.train()
    return trainer.evaluate()


def main() -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model, ids = BertForSequenceClassification(BertConfig(**SIZES)), mt.Inputs(input_ids=torch.randint(8, 50, (2, 8)))
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"]))
    scores = {}
    with tempfile.TemporaryDirectory() as folder:
        lora = mt.ensemble(adapted, hf.LoRA(members=4), ids, output="logits", seed=0)  # members share the base
        deep = mt.ensemble(BertForSequenceClassification(BertConfig(**SIZES)), mt.Deep(members=2), ids, output="logits", seed=0)
        scores = {"deep": trained(deep, 3e-3, folder), "lora": trained(lora, 3e-2, folder)}
    for name, found in scores.items():
        print(name, {key: round(value, 4) for key, value in found.items() if "accuracy" in key or "nll" in key})
    return scores


if __name__ == "__main__":
    main()
