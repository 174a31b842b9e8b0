"""Serve: an exported ensemble behind HTTP, with its uncertainty. It needs onnxruntime, and never imports torch."""
