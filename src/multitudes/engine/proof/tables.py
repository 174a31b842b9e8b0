"""Leaves out the rows of embedding tables that an example does not read: of a language model they are most of what is copied.

The ids of the example are numbered anew. That changes no output where forward does nothing with ids but look up rows, which is
seen on the meta device, where ids have no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.listening import Listening, result_of
from multitudes.engine.modules import as_same_kind, copy_with, hooked, join_name, named_parts, note_names, plain_attention
from multitudes.engine.program import META, shape_inputs, shapes_only
from multitudes.engine.seeds import seeded
from multitudes.engine.state import MODES, Engine

FIRST = 64
"""The first rows of a table stay, under their numbers: special tokens and masks are among them."""
WORTH = 1_000_000
"""Numbers of a table from which on leaving rows out pays."""


def with_few_rows(engine: Engine, inputs: Inputs, plain: nn.Module) -> tuple[Engine, Inputs] | None:
    """Returns the engine with the rows of large tables that the inputs read, and inputs with the new numbers of these rows.

    None if it has no such table, or if forward reads ids in another way. `plain` is the network of one member.
    """
    tables = _large_tables(engine)
    if not tables:
        return None
    try:
        seen = [_seen(plain, inputs, mode) for mode in MODES]
        cut, moved = _that_can_be_cut(tables, seen)
        if not cut:
            return None
        kept = _kept_ids(tables, cut, [inputs.tensors()[place] for place in moved])
        few, call = _cut(engine, cut, kept), _renumbered(inputs, moved, kept)
        alone = _cut(replace(engine, template=plain, owned=frozenset()), cut, kept).template
        again = [_seen(alone, call, mode, seen[0].ids) for mode in MODES]
    except Exception:  # values decide what runs
        return None
    same = all((a.names, a.outputs) == (b.names, b.outputs) for a, b in zip(seen, again, strict=True))
    return (few, call) if same else None


def _large_tables(engine: Engine) -> dict[str, nn.Embedding]:
    """Returns the tables that may lose rows: every tensor has a row for each id in its first axis, or none."""
    hooks, notes, ours = set(hooked(engine.template)), note_names(engine.template), engine.owned | engine.summed
    tables = {}
    for name, part in named_parts(engine.template):
        if not isinstance(part, nn.Embedding) or part._modules or part.max_norm is not None or name in hooks:
            continue
        count, clear = part.num_embeddings, True
        for key, tensor in _own(part):
            full = join_name(name, key)
            shape = tensor.shape[1:] if full in ours else tensor.shape
            clear &= full in notes or (len(engine.registers.get(full, ())) == 1 and count not in shape[1:])
        if clear and count * part.embedding_dim >= WORTH:
            tables[name] = part
    return tables


def _own(part: nn.Module) -> list[tuple[str, Tensor]]:
    return [(key, t) for kind in (part._parameters, part._buffers) for key, t in kind.items() if t is not None]


class _Readers(Listening):
    """Sees what is done with ids: which tables are called with them, and whether anything else reads them."""

    def __init__(self, call: Inputs, ids: frozenset[int]) -> None:
        super().__init__()
        self.ids = ids
        self.places = {t.untyped_storage()._cdata: i for i, t in enumerate(call.tensors()) if i in ids}
        self.inside = False
        self.elsewhere: set[int] = set()
        """The inputs that something else than a table reads."""
        self.read: dict[str, set[int | None]] = {}
        """For each table, the inputs that are looked up in it; None stands for ids that are not known."""
        self.names: list[str] = []
        self.outputs: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = {place for t in tree.tensors((args, kwargs)) if (place := self.place(t)) is not None}
        result = result_of(func, args, kwargs)
        self.names.append(str(func))
        if found and not (self.inside and func is torch.ops.aten.embedding.default):
            writes = any(argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments)
            made = [self.place(t) for t in tree.tensors(result)]
            if writes or not made or None in made:  # no view of the ids
                self.elsewhere |= found
        return result

    def place(self, tensor: Tensor) -> int | None:
        """Returns which input a tensor is, or is a view of; None if it is none of the ids."""
        return self.places.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None

    def enter(self, name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        """Notes that a table is called."""
        self.inside = True
        ids = args[0] if args and isinstance(args[0], Tensor) else None
        place = None if ids is None else self.place(ids)
        if ids is None or (place is None and (ids.is_meta or bool((ids >= FIRST).any()))):
            self.read.setdefault(name, set()).add(None)
        else:
            self.read.setdefault(name, set()).update(() if place is None else (place,))

    def leave(self, *_: Any) -> None:
        """Notes that a table has returned."""
        self.inside = False


def _seen(plain: nn.Module, inputs: Inputs, mode: str, ids: frozenset[int] | None = None) -> _Readers:
    """Runs a network on the meta device, where `ids` have no values. By default these are whole numbers from `FIRST` on."""
    whole = {i: t for i, t in enumerate(inputs.tensors()) if t.dtype in (torch.int32, torch.int64) and t.numel()}
    ids = frozenset(i for i, t in whole.items() if int(t.max()) >= FIRST and int(t.min()) >= 0) if ids is None else ids
    thin, call = shapes_only(plain), shape_inputs(inputs)
    call = call.refill([t.to(META) if i in ids else t for i, t in enumerate(call.tensors())])
    readers = _Readers(call, ids)
    thin.train(mode == "train")
    with _watched(thin, readers), torch.no_grad(), plain_attention(), seeded(0), readers:
        readers.outputs = [tensor.shape for tensor in tree.tensors(thin(*call.args, **call.kwargs))]
    return readers


@contextmanager
def _watched(thin: nn.Module, readers: _Readers) -> Iterator[None]:
    handles = []
    for name, part in named_parts(thin):
        if isinstance(part, nn.Embedding):
            handles.append(part.register_forward_pre_hook(partial(readers.enter, name)))
            handles.append(part.register_forward_hook(readers.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _that_can_be_cut(tables: Mapping[str, nn.Embedding], seen: list[_Readers]) -> tuple[set[str], frozenset[int]]:
    """Returns the tables that can lose rows, and the inputs whose ids get new numbers: those that only such tables read."""
    read: dict[str, set[int | None]] = {}
    for readers in seen:
        for name, places in readers.read.items():
            read.setdefault(name, set()).update(places)
    stays: set[int | None] = {None}.union(*(readers.elsewhere for readers in seen))
    for _ in read:  # a table that stays holds its ids, and these hold the other tables that they are looked up in
        for name, places in read.items():
            if name not in tables or places & stays:
                stays |= places
    cut = {name for name, places in read.items() if name in tables and not places & stays}
    return cut, frozenset(place for name in cut for place in read[name] if place is not None)


def _kept_ids(tables: Mapping[str, nn.Embedding], cut: set[str], ids: list[Tensor]) -> Tensor:
    """Returns the ids whose rows stay, in order: the place of an id is its new number."""
    paddings = [tables[name].padding_idx for name in cut]
    more = torch.tensor([padding for padding in paddings if padding is not None], dtype=torch.int64)
    return torch.cat([torch.arange(FIRST), more, *(tensor.detach().flatten().cpu().long() for tensor in ids)]).unique()


def _renumbered(inputs: Inputs, moved: frozenset[int], kept: Tensor) -> Inputs:
    tensors = inputs.tensors()
    for place in moved:
        tensors[place] = torch.searchsorted(kept.to(tensors[place].device), tensors[place]).to(tensors[place].dtype)
    return inputs.refill(tensors)


def _cut(engine: Engine, cut: set[str], kept: Tensor) -> Engine:
    """Copies an engine with the rows `kept` of some tables; other tensors keep their memory."""
    values, notes, ours = {}, note_names(engine.template), engine.owned | engine.summed
    for name in cut:
        part: Any = engine.template.get_submodule(name)
        rows = kept[kept < part.num_embeddings]
        for key, tensor in _own(part):
            full = join_name(name, key)
            axis = int(full in ours)
            if full not in notes and tensor.ndim > axis and tensor.shape[axis] == part.num_embeddings:
                values[full] = as_same_kind(tensor, tensor.detach().index_select(axis, rows.to(tensor.device)))
    template = copy_with(engine.template, values)
    for name in cut:
        table: Any = template.get_submodule(name)
        if table.padding_idx is not None:
            table.padding_idx = int(torch.searchsorted(kept, table.padding_idx))
        table.num_embeddings = int((kept < table.num_embeddings).sum())
    new = replace(engine, template=template, why={}, proven=dict(engine.proven))
    new.refresh()
    return new
