"""Ensembles inside other people's training code: one thin adapter for each library, imported by its name.

hf          `wrap(ens)` for the Trainer of transformers; `LoRA`, ensembles of peft's adapters
lightning   `EnsembleModule`, a LightningModule; `LogUncertainty`, a callback
sklearn     `EnsembleClassifier` and `EnsembleRegressor`
vision      `load_weights` and `preparation`, for networks of timm and torchvision

An adapter needs its library: ``from multitudes.integrations import hf`` imports transformers.
"""
