# SPDX-License-Identifier: MIT
"""Conditions of tests."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch


def get_arch_major() -> int:
    """The current GPU's major compute capability; without a GPU 9, Hopper's, as all is here."""
    return torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 9


def test_filter(condition: Callable[[], bool]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function runs where the condition holds, and else says that it did not."""

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> None:
            if condition():
                function(*args, **options)
            else:
                print(f"{function.__name__}: left out, since {condition} does not hold\n")

        return run

    return decorate


test_filter.__test__ = False  # type: ignore[attr-defined] # pytest is not to collect it


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: where the condition holds, the function runs without that environment variable."""

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> None:
            saved = os.environ.pop(name, None) if condition() else None
            try:
                function(*args, **options)
            finally:
                if saved is not None:
                    os.environ[name] = saved

        return run

    return decorate
