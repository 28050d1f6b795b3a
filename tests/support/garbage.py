"""When the tests' processes search for cycles: not while tests are collected, then only among new.

Collecting thousands of tests creates a million objects that stay. Python would search all of them
again and again: that took nearly half of the time of collecting, and a part of every test.
"""

import gc

EVERY = 20_000
"""Objects created and not freed between searches among the youngest. As in the simulator."""


def stay_out_of_collecting() -> None:
    """Until `look_at_new_objects`."""
    gc.disable()


def look_at_new_objects() -> None:
    """What is there by now is never searched again."""
    gc.freeze()
    gc.set_threshold(EVERY)
    gc.enable()
