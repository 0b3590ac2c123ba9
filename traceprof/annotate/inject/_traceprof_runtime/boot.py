"""Waiting for the program to import torch; costs next to nothing where it never does."""

from .after_import import call_after_import


def watch_for_torch():
    """Install the hooks as soon as the program has imported torch."""
    call_after_import("torch", _install_hooks)


def _install_hooks(torch):
    from . import install  # not before torch is there: programs without it are not held up

    install.install_hooks(torch)
