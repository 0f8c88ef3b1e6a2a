"""One test for many inputs: a loop, whose failure says for which input it failed.

The default run tries a part of the inputs where all take seconds (``few``), and fewer random examples (``examples``). A
run that does not leave out the slow tests, as that of continuous integration, tries all.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

#: Whether this run tries every input; the root ``conftest.py`` sets it by the markers that were asked for.
WHOLE = True
PART = 3  #: the default run draws one of so many random examples


def examples(count: int) -> int:
    """Return how many random examples this run draws, of so many in a whole run."""
    return count if WHOLE else max(count // PART, 1)


def each(
    names: str | tuple[str, ...], values: Iterable[Any] | Callable[[], Iterable[Any]], ids: Any = None, few: int = 0
) -> Callable[[Any], Any]:
    """Run a test for every value in one case, as ``pytest.mark.parametrize`` does in one case a value.

    It costs no collection, set-up and report a value; use it if a value takes milliseconds. Fixtures are those of the
    whole loop. Values that take a while to make, such as trained networks, are given as a function, called by the test.
    If all together take more than a second, ``few`` says how many the default run tries, evenly spread.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    make = values if callable(values) else list(values).copy

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            made = list(make())
            for value in made if WHOLE or not few else made[:: -(-len(made) // few)]:
                given = dict(zip(keys, value if len(keys) > 1 else (value,), strict=True))
                try:
                    test(**fixtures, **given)
                except BaseException as error:
                    error.add_note(f"with {', '.join(f'{key}={given[key]!r:.200}' for key in keys)}")
                    raise

        parameters = inspect.signature(test).parameters.values()
        loop.__signature__ = inspect.Signature([p for p in parameters if p.name not in keys])  # type: ignore[attr-defined]
        for mark in ("hypothesis", "is_hypothesis_test"):  # examples are drawn inside the loop
            loop.__dict__.pop(mark, None)
        return loop

    return decorate
