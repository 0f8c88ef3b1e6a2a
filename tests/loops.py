"""One test for many inputs: a loop, whose failure says for which input it failed."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(
    names: str | tuple[str, ...], values: Iterable[Any] | Callable[[], Iterable[Any]], ids: Any = None
) -> Callable[[Any], Any]:
    """Run a test for every value in one case, as ``pytest.mark.parametrize`` does in one case a value.

    It costs no collection, set-up and report a value; use it if a value takes milliseconds. Fixtures are those of the
    whole loop. Values that take a while to make, such as trained networks, are given as a function, called by the test.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    make = values if callable(values) else list(values).copy

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            for value in make():
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
