"""Walks through the autograd graph, from outputs back to parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def walk(nodes: Iterable[Any], stop: Callable[[Any], bool] = lambda node: False) -> Iterator[Any]:
    """Yields these nodes and all behind them, each once; goes no further behind a node where `stop(node)` holds."""
    queue, seen = list(nodes), set()
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if not stop(node):
            queue.extend(source for source, _ in node.next_functions)


def outputs_first(ends: tuple[Any, ...]) -> list[Any]:
    """Sorts the nodes behind `ends`, each before the nodes that it was computed from."""
    done: list[Any] = []
    seen: set[Any] = set()
    stack = [(node, False) for node in ends]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            done.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source, _ in node.next_functions)
    return done[::-1]
