"""Data about a batch that many tasks write: plain, so that it can be sent between processes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One execution of a batch by the program that drives it.

    Attributes:
        application_id: Whose ledger lists the committed batches; the tasks' `transactional_id`.
        checkpoint: Names the series of batches. A different one under the same application id is
            LEDGER_MISMATCH: its numbers would mean other batches. At most 249 characters.
        run: A UUID per execution. Its first branch aborts what older runs left open.
        batch: Its number, 0 or more; a batch whose number is not above the last committed one
            counts as a repetition.
    """

    application_id: str
    checkpoint: str
    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class Branch:
    """What one attempt of a task has written. `epoch` tells it from the branch's other uses."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The answer to the commit of a batch.

    Attributes:
        already_committed: The ledger had it: nothing was committed now.
        rows_then: With `already_committed`, how many rows were said to be in it; 0 = it was empty,
            -1 = not kept.
        visible: Every partition has heard; False = those that have not will within moments.
        digest_then: With `already_committed`, the digest that came with the batch; 0 = unknown, or
            it is the newest batch, which a restarted program may compute with other rows.
    """

    already_committed: bool
    rows_then: int = -1
    visible: bool = False
    digest_then: int = 0
