"""hf.wrap: an unchanged Trainer trains, evaluates, saves and resumes ensembles of BERT and ViT, and of peft's adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt

pytestmark = pytest.mark.slow
transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
from multitudes.integrations import hf  # noqa: E402

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 3}


def bert(kind: str = "SequenceClassification", **more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=16, **{**SIZES, **more})
    return getattr(transformers, f"BertFor{kind}")(config)


def words(rows: int, length: int = 6) -> dict[str, Tensor]:
    ids = torch.randint(3, 40, (rows, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def items(rows: int = 24) -> list[dict[str, Any]]:
    """Sentences whose class is that of their first word, and a column that no model takes."""
    return [{"input_ids": ids, "labels": int(ids[0]) % 3, "unused": "text"} for ids in words(rows)["input_ids"]]


def trainer(net: Any, data: list[Any], out: Path, **more: Any) -> Any:
    given = {key: more.pop(key) for key in ("callbacks", "data_collator", "optimizers") if key in more}
    args = transformers.TrainingArguments(
        str(out),
        **{"per_device_train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 3e-3, "report_to": [], **more},
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=0,
    )
    return transformers.Trainer(
        model=net, args=args, train_dataset=data, eval_dataset=data, compute_metrics=net.compute_metrics, **given
    )


METHODS = [
    mt.Deep(members=2),
    mt.Masksembles(members=2, fewest=2),
    mt.MIMO(members=2),
    mt.EMP(members=3, components=2, tau=1.0),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.filterwarnings("ignore:the . members have collapsed")
def test_it_trains_and_evaluates_with_an_unchanged_trainer(method: mt.Method, tmp_path: Path) -> None:
    """A step's loss is that of ens.loss; the scores are those of mt.score; the loss of an evaluation is the mixture's NLL."""
    ens = mt.ensemble(bert(), method, words(2), output="logits", seed=0, check=False)
    net, x, y = hf.wrap(ens), words(8), torch.arange(8) % 3
    state = ens.generator.get_state()
    torch.manual_seed(1)
    found = net.train()(**x, labels=y)
    ens.generator.set_state(state)
    torch.manual_seed(1)
    torch.testing.assert_close(found.loss, ens.loss(x, y, F.cross_entropy))
    assert (found.logits is None) == (isinstance(method, mt.MIMO) or method.trains_by_part)

    run = trainer(net, items(), tmp_path, save_strategy="no")
    first = run.evaluate()
    run.train()
    last = run.evaluate()
    assert last["eval_loss"] < first["eval_loss"]
    logits, members = run.predict(items()).predictions
    assert (logits.shape, members.shape) == ((24, 3), (24, method.members, 3))
    torch.testing.assert_close(torch.tensor(logits).exp(), torch.tensor(members).softmax(-1).mean(1))
    pred = mt.predict(ens, {"input_ids": words(24)["input_ids"]})
    torch.testing.assert_close(torch.tensor(members), pred.members.logits.movedim(0, 1), atol=1e-5, rtol=1e-4)
    expected = mt.score(pred, torch.tensor([item["labels"] for item in items()]))
    assert last["eval_nll"] == pytest.approx(expected["nll"], rel=1e-4) == pytest.approx(last["eval_loss"], rel=1e-4)


def test_it_saves_and_resumes_and_is_loaded_again(tmp_path: Path) -> None:
    """The Trainer's folder has one file of safetensors, which mt.load reads too."""
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_channels=1, **SIZES)
    torch.manual_seed(0)
    images = torch.randn(16, 1, 16, 16)
    data = [{"pixel_values": image, "labels": n % 3} for n, image in enumerate(images)]
    model = transformers.ViTForImageClassification(config)
    ens = mt.ensemble(model, mt.Packed(members=2, alpha=2), {"pixel_values": images[:2]}, output="logits", seed=0, check=False)
    net = hf.wrap(ens)
    each = {"save_strategy": "epoch", "eval_strategy": "epoch"}
    run = trainer(net, data, tmp_path, **each, load_best_model_at_end=True, metric_for_best_model="nll")
    run.train()
    run.save_model(str(tmp_path / "last"))
    expected = net.eval()(pixel_values=images).members
    for again in (hf.load(tmp_path / "last"), hf.load(tmp_path / "last", model), type(net).from_pretrained(tmp_path / "last")):
        assert torch.equal(again.eval()(pixel_values=images).members, expected)
    assert torch.equal(mt.load(tmp_path / "last" / "model.safetensors", model).eval()(images).movedim(0, 1), expected)
    assert again.config.architectures == ["ViTForImageClassification"]

    other = trainer(hf.wrap(mt.load(tmp_path / "last" / hf.FILE, model)), data, tmp_path, **each, num_train_epochs=3)
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert other.state.global_step == 6
    with pytest.raises(mt.FileError, match=r"has no config.json"):
        hf.load(tmp_path)


@pytest.mark.filterwarnings("ignore:the 2 members have collapsed")  # four sentences teach both the same
def test_tokens_may_have_other_lengths_in_each_batch(tmp_path: Path) -> None:
    """Labels −100 do not count, also where the Trainer pads."""
    ens = mt.ensemble(
        bert("TokenClassification"), mt.BatchEnsemble(members=2), words(2), output="logits", class_axis=-1, seed=0, check=False
    )
    data = []
    for length in (5, 5, 7, 7):
        ids = words(1, length)["input_ids"][0]
        data.append({"input_ids": ids, "labels": torch.where(torch.arange(length) < 2, -100, ids % 3)})
    net = hf.wrap(ens)
    run = trainer(net, data, tmp_path, per_device_train_batch_size=1, per_device_eval_batch_size=2, save_strategy="no")
    first = run.evaluate()
    run.train()
    assert run.evaluate()["eval_nll"] < first["eval_nll"]
    found = run.predict(data)
    assert found.predictions[1].shape == (4, 7, 2, 3)
    wrong = torch.cat([net.eval()(input_ids=one["input_ids"][None]).logits[0].argmax(-1) != one["labels"] for one in data])
    counted = torch.cat([one["labels"] for one in data]) != -100
    assert found.metrics["test_accuracy"] == pytest.approx(1 - float(wrong[counted].float().mean()))
    unsaid = mt.ensemble(bert("TokenClassification"), mt.Deep(members=2), words(2), output="logits", check=False)
    with pytest.raises(mt.InputError, match="for tokens"):
        hf.wrap(unsaid).eval()(**words(2))


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_numbers(task: str, tmp_path: Path) -> None:
    """The Trainer's labels are [B], and the head's outputs [B, 1], or [B, 2] with a variance."""
    model = bert(num_labels=1 if task == "regression" else 2)
    ens = mt.ensemble(model, mt.MultiHead(members=3), words(2), output="logits", task=task, seed=0, check=False)
    data = [{"input_ids": ids, "labels": float(ids[0]) / 20 - 1} for ids in words(24)["input_ids"]]
    run = trainer(hf.wrap(ens), data, tmp_path, save_strategy="no", num_train_epochs=4)
    first = run.evaluate()
    run.train()
    last = run.evaluate()
    assert last["eval_rmse"] < first["eval_rmse"]
    assert task == "gaussian" or last["eval_loss"] == pytest.approx(last["eval_rmse"] ** 2, rel=1e-3)


def test_a_prior_knows_the_rows_of_a_whole_step() -> None:
    """With accumulated parts, those of all parts."""
    method = mt.ECMP(members=2, components=2, prior="elbo", examples=100)
    ens = mt.ensemble(bert(), method, words(2), output="logits", seed=0, check=False)
    net, x, y = hf.wrap(ens, accumulate=4).train(), words(8), torch.arange(8) % 3
    state = ens.generator.get_state()
    losses = []
    for step in (
        lambda: net(**x, labels=y).loss,
        *(lambda r=r: ens.loss(x, y, F.cross_entropy, global_batch=r) for r in (32, 8)),
    ):
        ens.generator.set_state(state)
        torch.manual_seed(1)
        losses.append(step())
    torch.testing.assert_close(losses[0], losses[1])


def test_refusals(tmp_path: Path) -> None:
    """A loss that the Trainer would compute from the mixture, and a method that acts after steps."""
    ens = mt.ensemble(bert(), mt.Deep(members=2), words(2), output="logits", seed=0, check=False)
    with pytest.raises(mt.RunError, match="a training step needs labels="):
        trainer(hf.wrap(ens), items(), tmp_path, label_smoothing_factor=0.1).train()
    smooth = hf.wrap(ens, criterion=nn.CrossEntropyLoss(label_smoothing=0.1)).train()
    x, y = words(4), torch.arange(4) % 3
    torch.manual_seed(1)
    found = smooth(**x, labels=y).loss
    torch.manual_seed(1)
    torch.testing.assert_close(found, ens.loss(x, y, nn.CrossEntropyLoss(label_smoothing=0.1)))
    with pytest.raises(mt.InputError, match=r"hf\.wrap"):
        hf.wrap(bert())  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Counting(mt.Method):
    """Counts its steps in a buffer of the members."""

    def layout(self, structure: Any) -> Any:
        return mt.Deep().layout(structure)

    def after_step(self, ensemble: mt.Ensemble) -> None:
        ensemble.steps = getattr(ensemble, "steps", 0) + 1  # type: ignore[assignment]


def test_a_method_that_acts_after_steps(tmp_path: Path) -> None:
    ens = mt.ensemble(bert(), Counting(members=2), words(2), output="logits", seed=0, check=False)
    with pytest.raises(mt.RunError, match=r"callbacks=\[hf.Hooks\(\)\]"):
        trainer(hf.wrap(ens), items(), tmp_path).train()
    options = {"gradient_accumulation_steps": 3, "num_train_epochs": 1, "save_strategy": "no"}
    trainer(hf.wrap(ens), items(), tmp_path, callbacks=[hf.Hooks()], **options).train()
    assert ens.steps == 1


@pytest.mark.parametrize("method", [mt.SWAG(members=2, begin=0), mt.Snapshot(members=2), mt.Laplace(members=2)])
def test_members_that_are_made_of_a_run(method: mt.Method, tmp_path: Path) -> None:
    """Without the callback they would all be one network."""
    ens = mt.ensemble(bert(), method, words(2), output="logits", seed=0, check=False)
    with pytest.raises(mt.RunError, match=r"callbacks=\[hf.Hooks\(\)\]"):
        trainer(hf.wrap(ens), items(), tmp_path).train()
    net = hf.wrap(ens)
    trainer(net, items(), tmp_path, callbacks=[hf.Hooks()], num_train_epochs=2, save_strategy="no").train()
    call = words(4)
    first, second = net.eval()(**call).members.unbind(1)
    assert not torch.allclose(first, second)
    net.save_pretrained(tmp_path / "end")
    assert torch.equal(hf.load(tmp_path / "end").eval()(**call).members, net(**call).members)


def adapted(**more: Any) -> Any:
    config = {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query", "value"], **more}
    return peft.get_peft_model(bert(), peft.LoraConfig(**config))


def test_members_of_lora_share_the_base_and_own_adapters_and_heads(tmp_path: Path) -> None:
    """Only these train, and each member is a peft model whose adapters merge into its base."""
    model = adapted()
    ens = mt.ensemble(model, hf.LoRA(members=3), words(2), output="logits", seed=0)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    own = {name for name, parameter in ens.named_parameters() if parameter.shape == (3, *shapes[name])}
    assert own == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert own == {name for name, parameter in ens.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in own)
    state = ens.state_dict()
    for name in own:
        assert bool((state[name] == 0).all()) if "lora_B" in name else not torch.equal(state[name][0], state[name][1])

    before = {name: tensor.clone() for name, tensor in state.items()}
    trainer(hf.wrap(ens), items(), tmp_path, save_strategy="no", learning_rate=0.05).train()
    assert {name for name, tensor in ens.state_dict().items() if not torch.equal(tensor, before[name])} == own
    x = words(5)
    outputs = ens.eval()(**x)
    for m in range(3):
        merged = ens.member(m).merge_and_unload()
        torch.testing.assert_close(outputs[m], output_tensor(merged(**x)))
    assert not torch.allclose(outputs[0], outputs[1])
    hf.wrap(ens).save_pretrained(tmp_path / "lora")
    assert torch.equal(hf.load(tmp_path / "lora", adapted()).eval()(**x).members.movedim(1, 0), outputs)


def output_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def test_lora_starts_as_the_given_model_but_for_its_head() -> None:
    """B is zero in every member: the hidden states are those of the base."""
    model = adapted().eval()
    ens = mt.ensemble(model, hf.LoRA(members=2), words(2), output="logits", seed=0).eval()
    head = next(name for name, _ in model.named_modules() if name.endswith("modules_to_save.default"))
    state = {name: tensor for name, tensor in ens.state_dict().items() if name.startswith(head)}
    given = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(head)}
    ens.load_state_dict({**ens.state_dict(), **{name: given[name].expand_as(state[name]) for name in state}})
    torch.testing.assert_close(ens(**words(3)), model(**words(3)).logits.expand(2, -1, -1))


def test_lora_refuses_what_has_no_adapters_of_its_own() -> None:
    with pytest.raises(mt.InputError, match="finds no adapters of peft"):
        mt.ensemble(bert(), hf.LoRA(), words(2))
    with pytest.raises(mt.InputError, match="all adapters are frozen"):
        mt.ensemble(adapted(inference_mode=True, modules_to_save=None, task_type=None), hf.LoRA(), words(2))
    with pytest.raises(mt.InputError, match="changes the base model, which members share"):
        mt.ensemble(adapted(init_lora_weights="olora"), hf.LoRA(), words(2))
