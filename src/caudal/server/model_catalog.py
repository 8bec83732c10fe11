"""The models that may be asked for, and which of them a name means.

A model has the name it is listed by and the aliases that the server was started with. Clients also write names in
their own ways, so these mean it too, as long as nothing is called exactly so: with ":latest" or ".gguf" at the end,
the last part of a path, and BASE:QUANT for a file called BASE-QUANT. Capitals do not count.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from caudal.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from caudal.server.settings import ServedModel

FRESH_S = 1.0
_LATEST = ":latest"
_ENDING = ".gguf"
_QUANT = re.compile(r"(?P<base>.+)[-.](?P<quant>(?:i?q[0-9]\w*|bf16|f16|f32|fp16|mxfp4\w*))", re.IGNORECASE)


def spellings(name: str) -> tuple[str, ...]:
    """Return the ways to write a listed name, without capitals, the most exact first."""
    exact = name.lower()
    base = exact.removesuffix(_ENDING).removesuffix(_LATEST)
    stem = base.rpartition("/")[2]
    match = _QUANT.fullmatch(stem)
    quant = () if match is None else (f"{match['base']}:{match['quant']}",)
    return tuple(dict.fromkeys((exact, base, stem, *quant)))


def find_model(models: Sequence[ServedModel], name: str) -> ServedModel | None:
    """Return the model that a name means, the first of several; None if it is no model's."""
    for model in models:
        if name == model.name or name in model.aliases:
            return model
    wanted = name.lower().removesuffix(_LATEST)
    choices = (wanted, wanted.removesuffix(_ENDING))
    ranked = [(rank, model) for model in models for rank in [_rank(model, choices)] if rank is not None]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _rank(model: ServedModel, choices: tuple[str, ...]) -> int | None:
    """Return how exactly one of these is a name of the model, 0 being the most; None if none is."""
    ways = [*dict.fromkeys(alias.lower() for alias in model.aliases)]
    ways = [*ways, *spellings(model.name)]
    ranks = [ways.index(choice) for choice in choices if choice in ways]
    return min(ranks, default=None)


def read_aliases(given: Sequence[str]) -> dict[str, str]:
    """Return alias -> model from NAME=MODEL pairs.

    Raises:
        ConfigError: one is no such pair, or an alias is given twice.
    """
    aliases: dict[str, str] = {}
    for pair in given:
        name, _, model = (part.strip() for part in pair.partition("="))
        if not name or not model:
            message = f"--alias is {pair!r}; expected NAME=MODEL"
            raise ConfigError(message)
        if aliases.setdefault(name, model) != model:
            message = f"--alias gives {name!r} to {aliases[name]!r} and to {model!r}; a name means one model"
            raise ConfigError(message)
    return aliases


class ModelCatalog:
    """The models that there are now.

    Args:
        look: returns them, the default first; it may block.
        aliases: further names -> what each of them means.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[ServedModel]],
        aliases: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._aliases = dict(aliases or {})
        self._clock = clock
        self._looking = asyncio.Lock()
        self._models: tuple[ServedModel, ...] = ()
        self._seen_s = -FRESH_S

    def models(self) -> tuple[ServedModel, ...]:
        """Return the models as they were when somebody last looked."""
        return self._models

    def find(self, name: str | None) -> ServedModel | None:
        """Return the model that a name means, of those last seen; no name means the first."""
        if not name:
            return self._models[0] if self._models else None
        return find_model(self._models, name)

    def look_now(self) -> None:
        """Look, here and now. For the start; later, refresh does it beside the event loop.

        Raises:
            ConfigError: an alias is for a model that does not exist.
        """
        self._take(self._look())
        for alias, target in self._aliases.items():
            if find_model(self._models, target) is None:
                names = ", ".join(repr(model.name) for model in self._models[:8]) or "no model"
                message = f"--alias {alias}={target}: {target!r} is not served; this server has {names}"
                raise ConfigError(message)

    async def refresh(self) -> None:
        """Look again, in a thread, unless somebody did so within the last second."""
        async with self._looking:
            if self._clock() - self._seen_s >= FRESH_S:
                self._take(await asyncio.to_thread(self._look))

    async def look_again(self) -> None:
        """Look, in a thread, however lately somebody did: something has changed."""
        async with self._looking:
            self._take(await asyncio.to_thread(self._look))

    def _take(self, found: Sequence[ServedModel]) -> None:
        extra: dict[str, list[str]] = {}
        for alias, target in self._aliases.items():
            model = find_model(found, target)
            if model is not None:
                extra.setdefault(model.name, []).append(alias)
        self._models = tuple(replace(model, aliases=(*model.aliases, *extra.get(model.name, ()))) for model in found)
        self._seen_s = self._clock()
