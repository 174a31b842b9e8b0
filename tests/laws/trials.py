"""Which law is tried by which method on which network: two lists, by rules without a seed.

FAST, in `make test`: Deep on the ResNet by every law, so that each fault of test_laws_can_fail.py is caught. Every other method
by every light law, each on one of five networks: law j of method i on network (i + j) mod 5, or the next one that takes it; if
no method tries a law on a network, Deep does. So each method meets each law and each network, and each law each network; but
methods of one run, which share one conversion, are tried by one law each. Heavy laws by the methods in `HEAVY`, on a small CNN.

FULL, in `make test-full`: every method on every network of the zoo by `member`, `executors` and one more law, number (i + j)
modulo their count for method i and network j; on the five networks by every light law; on the CNN by every heavy law. Methods
of one run are tried by every light law on one of the five networks, and by `member` on the others.

`PYTHONPATH=tests python -m laws.trials` prints FAST.
"""

from __future__ import annotations

from zoo import FIVE, ZOO, refusal

from laws import LAWS, METHODS

Trial = tuple[str, str, str]
"""The names of a method, a network and a law."""

HEAVY = {
    "untouched": ("Deep", "Packed", "EMP"),
    "modes": ("Deep", "BatchEnsemble", "MIMO"),
    "export": ("Deep", "Masksembles", "MCDropout"),
    "compile": ("Deep", "ECMP"),
    "compile_sizes": ("Deep",),
}
"""Laws that take seconds, as they trace graphs or convert a network several times, and the methods that are tried in FAST."""
SMALL = "cnn"
"""The network that heavy laws are tried on; in FULL some of them on `MORE` too."""
MORE = {"export": ("resnet", "vit"), "compile": ("unet",)}
LIGHT = tuple(law for law in LAWS if law not in HEAVY and law != "public")
STRONGEST = ("member", "executors")
ONE_RUN = {"SWAG": ("resnet", "member"), "Snapshot": ("lstm", "by_rows"), "Laplace": ("vit", "executors")}
"""Methods that convert all parts alike, and the one law and network of each in FAST."""
BY_ROW = ("rows", "batching", "by_rows")
"""Laws that speak of single rows: a base model whose rows depend on each other does not obey them itself."""


def applies(method: str, network: str, law: str) -> bool:
    """Whether the base model itself obeys the law, and nothing is refused."""
    return (ZOO[network].alone or law not in BY_ROW) and refusal(method, network, law) is None


def fast() -> list[Trial]:
    """What `make test` tries."""
    trials = [("Deep", FIVE[0], law) for law in LIGHT]
    trials += [(method, FIVE[0], "public") for method in METHODS]
    trials += [(method, *trial) for method, trial in ONE_RUN.items()]
    for i, method in enumerate(method for method in METHODS if method not in ONE_RUN):
        for j, law in enumerate(LIGHT):
            networks = [FIVE[(i + j + k) % len(FIVE)] for k in range(len(FIVE))]
            trials.append(next((method, network, law) for network in networks if applies(method, network, law)))
    pairs = {(network, law) for _, network, law in trials}
    trials += [("Deep", network, law) for network in FIVE for law in LIGHT if (network, law) not in pairs]
    return trials + [(method, SMALL, law) for law, methods in HEAVY.items() for method in methods]


def full() -> list[Trial]:
    """What `make test-full` tries, and `make test` with it."""
    trials: list[Trial] = []
    others = [law for law in LIGHT if law not in STRONGEST]
    for i, method in enumerate(METHODS):
        for j, network in enumerate(ZOO):
            laws = LIGHT if network in FIVE else (*STRONGEST, others[(i + j) % len(others)])
            if method in ONE_RUN:
                laws = tuple(law for k, law in enumerate(LIGHT) if network == FIVE[(i + k) % len(FIVE)]) or STRONGEST[:1]
            trials += [(method, network, law) for law in laws]
        for law in HEAVY:
            trials += [(method, network, law) for network in (SMALL, *(() if method in ONE_RUN else MORE.get(law, ())))]
    return trials


def tried(trials: list[Trial]) -> list[Trial]:
    """Those that apply, each once, with the laws of a method on a network side by side: they share a conversion."""
    orders = [list(names) for names in (METHODS, ZOO, LAWS)]
    places = {trial: [order.index(name) for order, name in zip(orders, trial, strict=True)] for trial in trials}
    return sorted((trial for trial in places if applies(*trial)), key=places.__getitem__)


FAST = tried(fast())
FULL = tried(fast() + full())


if __name__ == "__main__":
    for name in METHODS:
        print(name, *(f"\n    {network:<20} {law}" for method, network, law in FAST if method == name))
