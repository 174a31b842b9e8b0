# Every target does its own set-up, from a fresh clone on. Elsewhere than in .venv:  make test-gpu PYTHON=python3

PYTHON ?= .venv/bin/python
WORKERS ?= 2

# A worker with several threads would fight the others for the cores. Without compiled files on disk every process that a test
# starts would compile torch again.
TESTS = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PYTHON)
ZOO = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= .venv-zoo/bin/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 tests/thirdparty

# The stamp stands for the default interpreter only: another one is used as it is.
ready = $(if $(filter .venv/bin/python,$(PYTHON)),.venv/installed)

.PHONY: demo serve-demo test test-full test-gpu reliability speed zoo zoo-few costs gallery corruptions lint format

demo: $(ready)  ## every method trained on the embedded images by the same budget, and compared on one page: runs/demo/report.html
	@PYTHONDONTWRITEBYTECODE= $(PYTHON) -m multitudes bench --out runs/demo --workers $(WORKERS)

serve-demo: $(ready) runs/demo/report.html  ## the demo's best ensemble, exported and served with its page: http://127.0.0.1:8000
	@PYTHONDONTWRITEBYTECODE= $(PYTHON) examples/serve_demo.py runs/demo

runs/demo/report.html:
	@$(MAKE) demo

test: lint  ## what every change must pass: at most 4 minutes on 2 cores
	$(TESTS) -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not gpu" --doctest-modules src tests

test-full: $(ready)  ## all tests that are marked slow
	$(TESTS) -m pytest -n $(WORKERS) --dist worksteal --durations 20 -m "slow and not gpu"

test-gpu: $(ready)  ## by hand, on a machine with CUDA
	PYTHONPATH="$(CURDIR)/src" $(PYTHON) -m pytest -m gpu

reliability: $(ready)  ## kills, full disks, damaged files, load, broken requests, counted: docs/reliability.md
	@$(TESTS) benchmarks/reliability.py
	@$(TESTS) benchmarks/reliability.py --page

SPEED = OMP_NUM_THREADS=1 PYTHONPATH="src:.tu:.tu/vision" $(PYTHON) -m benchmarks --device cpu --threads 1

speed: $(ready) .tu/installed  ## every method on one CPU thread, beside its peers: results, docs/performance.md; about an hour
	@$(SPEED) --limit 30 --networks resnet18 vit mlp resnet50 --batches 1 16
	@$(SPEED) --limit 30 --networks resnet18 --batches 64
	@$(SPEED) --growth members
	@$(SPEED) --growth width
	@$(SPEED) --compile-seconds --networks resnet18
	@$(SPEED) --page

costs: $(ready)  ## the table of what methods cost in docs/methods.md
	@$(PYTHON) docs/cost_table.py

gallery: $(ready)  ## every figure on one page, light and dark, from made-up data: build/gallery.html
	@$(PYTHON) docs/gallery.py --out build/gallery.html

corruptions: $(ready)  ## all 95 corruptions as one picture: build/corruptions.png
	@$(PYTHON) docs/corruptions.py --out build/corruptions.png

zoo: .venv-zoo/installed  ## every network of timm by every method, in an environment of their own: by hand
	$(ZOO)

zoo-few: .venv-zoo/installed  ## the same for one network of each family and each method once: in CI
	$(ZOO) -m "not slow"

lint: $(ready)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

format: $(ready)
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing multitudes and its tools into .venv: once, a few minutes"
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test,dev]'
	@touch $@

# The peers that `make speed` measures, in a folder of their own. Torchvision is apart: where a GPU is, torch's own one is used.
.tu/installed:
	@echo "Installing torch-uncertainty and masksembles into .tu: once"
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target .tu torch-uncertainty==0.13.0 \
		lightning lightning-utilities timm einops jsonargparse typeshed-client docstring-parser torch-pruning rich \
		markdown-it-py mdurl pygments typer shellingham click masksembles
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target .tu/vision torchvision
	@touch $@

# An environment of its own: timm brings torchvision, which must not be where the other tests run.
.venv-zoo/installed: pyproject.toml constraints.txt
	@echo "Installing multitudes and timm into .venv-zoo: once, a few minutes"
	python3 -m venv .venv-zoo
	.venv-zoo/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e . hypothesis pytest \
		pytest-xdist timm mapie pandas pytorch-ood scikit-learn torch-geometric transformers triton
	.venv-zoo/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -c constraints.txt torchcp  # asks for a loss's compiler
	.venv-zoo/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -c constraints.txt laplace-torch \
		asdfghjkl==0.1a4 backpack-for-pytorch curvlinops-for-pytorch einconv einops jaxtyping lightning-utilities linear_operator \
		opt-einsum torchmetrics unfoldNd wadler-lindig  # laplace-torch and its parts, which must not move torch
	@touch $@
