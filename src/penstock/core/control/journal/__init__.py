"""A journal on the brokers, for decisions made while the metadata store is unavailable. Pure.

    proposer  JournaledDocuments  one per controller: read, write, hold (`proposer.py`)
    acceptor  JournalHolder       one per broker: promised epoch, newest journal (`holder.py`);
                                  what it believes of what it is sent (`checks.py`)

The journal is one value, cumulative: all documents as they are after every change since the store
became unavailable. It counts once a majority of the brokers registered in the *store* keep it. One
register, one proposer per epoch: Paxos with the controller epoch as ballot.

- A controller that takes over reads the store at epoch e, then asks a majority to promise e + 1 and
  to send their journals. Two majorities share a broker, so the controller learns of everything that
  counts, and nothing of a lower epoch counts from then on. It reads the store
  again, because a broker may act on what was stored before it promised; writes the newest journal
  to it; raises the epoch; and only then decides anything.
- Raising the epoch in the store is a compare-and-swap on what was read before the promises, so
  an epoch has one owner, and a proposer writes its journals under an epoch that it owns.
- Journals of older epochs than the store's no longer count: the controller that raised it has read
  them. A controller that has sent a journal never again writes to the store under that epoch, only
  under the next.
- A document of a journal is written to the store if its metadata version is newer. A write to the
  store that was never answered may still take effect: documents it would change are in the journal
  from its beginning, restamped with a version above that write's.

Belongs here: the journal, the decisions of proposer and acceptor, and what they ask of their shells
(`contract.py`). Never here: what a controller decides. Its machine knows nothing of a journal; its
shell reads and writes documents through one.
"""
