"""What saved states have in common: parameters go by name, and ranks by their old numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

Value = TypeVar("Value")

Named = Sequence[tuple[str, Tensor]]
"""Parameters with their names, as a module's `named_parameters` gives them."""


def by_name(table: Mapping[int, Value], parameters: Named) -> dict[str, Value]:
    """Return a table over identities of parameters as one over their names."""
    return {name: table[id(one)] for name, one in parameters if id(one) in table}


def by_identity(table: Mapping[str, Value], parameters: Named) -> dict[int, Value]:
    """Return a table over names of parameters as one over their identities.

    Raises
    ------
    ValueError
        If there is no parameter of a name.
    """
    identities = {name: id(one) for name, one in parameters}
    check_known(table, identities)
    return {identities[name]: value for name, value in table.items()}


def check_known(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError if there are names of parameters that the model does not have."""
    strangers = sorted(set(names).difference(known))
    if strangers:
        raise ValueError(
            f"the model has no parameter {', '.join(map(repr, strangers[:5]))}, which the saved "
            "state is of; load the state of the same model, not wrapped otherwise"
        )


def of_rank(rank: int, size: int) -> dict[str, Any]:
    """Return what a saved state says of where it comes from."""
    return {"rank": rank, "ranks": size}


def is_of_rank(state: Mapping[str, Any], rank: int, size: int) -> bool:
    """Return whether a saved state is this rank's own."""
    return (state["rank"], state["ranks"]) == (rank, size)


def all_states(
    states: Mapping[str, Any] | Sequence[Mapping[str, Any]], rank: int, size: int
) -> Sequence[Mapping[str, Any]]:
    """Return the states of all old ranks; this rank's own for each if that is all there is.

    Raises
    ------
    ValueError
        If one state is given and is another rank's, or several that are not those of all old ranks
        in their order.
    """
    if isinstance(states, Mapping):
        if not is_of_rank(states, rank, size):
            raise ValueError(
                f"this is the state of rank {states['rank']} of {states['ranks']}, not of rank "
                f"{rank} of {size}; pass this rank's own, or a list of all old ranks' states"
            )
        return [states] * size
    if [(one["rank"], one["ranks"]) for one in states] != [
        (r, len(states)) for r in range(len(states))
    ]:
        given = ", ".join(f"{one['rank']} of {one['ranks']}" for one in states)
        raise ValueError(f"the states of all old ranks are needed, in their order, not of {given}")
    return states
