"""What servers require of their Python interpreter.

Broken invariants stop machines (`penstock.core.defect`), and assertions find them: without
assertions, a defect would continue and cost data.
"""

from penstock.errors import ErrorCode, MisuseError


def check_interpreter() -> None:
    """Raises MisuseError when assertions are switched off."""
    if not __debug__:
        raise MisuseError(
            "python -O removes the invariant checks that protect your data; start without -O",
            ErrorCode.INVALID_CONFIG,
        )
