"""A journal on the brokers: what a controller decides while its metadata store is away. Pure.

    proposer  JournaledDocuments  one per controller: read, write, hold (`proposer.py`)
    acceptor  JournalHolder       one per broker: promised epoch, newest journal (`holder.py`)

The journal is one value, cumulative: all documents as they are after every change since the
store went away. It counts once a majority of the brokers registered in the *store* keep it. One
register, one proposer per epoch: Paxos with the controller epoch as ballot.

- A controller that takes over reads the store at epoch e, then asks a majority to promise
  e + 1 and to say what they keep. Two majorities share a broker: it learns of everything that
  counts, and nothing of a lower epoch counts from then on. It reads the store again, because a
  broker may act on what was stored before it promised; puts the newest journal there; raises the
  epoch; and only then decides anything.
- Raising the epoch in the store is a compare-and-swap on what was read before the promises, so
  an epoch has one owner, and a proposer writes its journals under an epoch that it owns.
- Journals of older epochs than the store's count no more: whoever raised it has read them. And
  whoever has sent a journal never again writes to the store under that epoch, only under the next.
- A document of a journal goes into the store if its metadata version is newer. A write to the
  store that was never answered may still pass: documents it would change are in the journal from
  its beginning, restamped with a version above that write's.

Belongs here: the journal, the decisions of proposer and acceptor, and what they ask of their shells
(`contract.py`). Never here: what a controller decides. Its machine knows nothing of a journal; its
shell reads and writes documents through one.
"""
