"""The fields of every kind's status: what the operator writes and `kubectl get` shows.

Rows as in `schema`; only the CRDs and the operator use them, local mode ignores a status. The
conditions are kstatus' (Ready, Reconciling, Stalled), present from the first second by default.
"""

from typing import Final

from penstock.core.manifest.rows import Field, Kind
from penstock.core.manifest.schema import BROKERS_MAX
from penstock.core.topic import DELETION_PROTECTION, PARTITIONS_MAX

MESSAGE_MAX_CHARS: Final = 32_768
OFFSETS_SHOWN_MAX: Final = 100
"""Partitions whose offsets the record of an offset reset lists; more are only counted."""
UPGRADE_CHANGES_MAX: Final = 20
"""Changes of a template that a Cluster's status lists; more are only counted."""
STEP_MAX_CHARS: Final = 5_000
"""The ids of all brokers there can be, in one text."""
RESET_IDS_MAX: Final = 100
"""Ids of offset resets that a ConsumerGroup remembers."""


def _count(name: str, doc: str, default: int | None = None) -> Field:
    return Field(name=name, kind=Kind.INTEGER, doc=doc, default=default, minimum=0)


def _text(name: str, doc: str, max_length: int = 253) -> Field:
    return Field(name=name, kind=Kind.TEXT, doc=doc, max_length=max_length)


_OBSERVED: Final = _count(
    "observedGeneration",
    "The metadata.generation this status describes; 0 = the operator has not seen the object yet.",
    default=0,
)
_MESSAGE: Final = _text(
    "message", "What the object is waiting for, and since when; empty = nothing.", MESSAGE_MAX_CHARS
)

CONDITIONS: Final = Field(
    name="conditions",
    kind=Kind.OBJECTS,
    doc="Ready, Reconciling and Stalled, as kubectl wait and kstatus expect them; of a Cluster, "
    "Secured as well: whether callers are asked who they are; RotatingCA once its CA was asked "
    "to be replaced; PartitionDamaged once a replica was damaged; and FormatPending once an "
    "upgrade was complete, and not finalized.",
    key="type",
    max_items=16,
    fields=(
        Field(
            name="type",
            kind=Kind.TEXT,
            doc="Ready, Reconciling, Stalled, Secured, RotatingCA, PartitionDamaged or "
            "FormatPending.",
            required=True,
            max_length=316,
        ),
        Field(
            name="status",
            kind=Kind.TEXT,
            doc="Whether the condition holds.",
            required=True,
            choices=("True", "False", "Unknown"),
        ),
        _count("observedGeneration", "The metadata.generation this condition describes."),
        Field(
            name="lastTransitionTime",
            kind=Kind.TIME,
            doc="When the status last changed.",
            required=True,
        ),
        Field(
            name="reason",
            kind=Kind.TEXT,
            doc="One word for programs.",
            required=True,
            max_length=1_024,
        ),
        Field(
            name="message",
            kind=Kind.TEXT,
            doc="A sentence for people.",
            required=True,
            max_length=MESSAGE_MAX_CHARS,
        ),
    ),
)

INITIAL_CONDITION: Final = {
    "type": "Ready",
    "status": "Unknown",
    "observedGeneration": 0,
    "lastTransitionTime": "1970-01-01T00:00:00Z",
    "reason": "Pending",
    "message": "waiting for the operator",
}
"""The status of an object before the operator has seen it."""


def _protected(doc: str) -> Field:
    return Field(name="protected", kind=Kind.BOOLEAN, doc=doc)


_BROKER_STATUS: Final = Field(
    name="brokerStatuses",
    kind=Kind.OBJECTS,
    doc="Every broker, by id.",
    key="id",
    max_items=BROKERS_MAX,
    fields=(
        Field(
            name="id",
            kind=Kind.INTEGER,
            doc="Broker id.",
            required=True,
            minimum=0,
        ),
        _text("pod", "Name of its pod."),
        _text("node", "Name of the node the pod runs on."),
        _text("image", "Image its container runs.", 512),
        Field(name="ready", kind=Kind.BOOLEAN, doc="Whether its pod is ready."),
        Field(
            name="registered",
            kind=Kind.BOOLEAN,
            doc="Whether it has a session with the controller.",
        ),
        _text("rack", "Its rack."),
        _count("leaders", "Partitions it leads."),
        _count("replicas", "Partition replicas it holds."),
        _text("version", "Penstock version it runs; absent = it has not said."),
        _text("directoryId", "The data directory it is registered with; absent = it is not."),
        _count(
            "bytes",
            "What its replicas take, each as large as its leader has it; absent = not known: it is "
            "asked for while partitions move because brokers come or go.",
        ),
        _count("damaged", "How many of its replicas are damaged; absent = none."),
        Field(
            name="cordoned",
            kind=Kind.OBJECT,
            doc="What it is kept from getting, until somebody lifts that; absent = nothing.",
            optional=True,
            fields=(
                Field(name="placement", kind=Kind.BOOLEAN, doc="Whether it gets no new replicas."),
                Field(name="leadership", kind=Kind.BOOLEAN, doc="Whether it gets no leaderships."),
                _text(
                    "by",
                    "Who cordoned it: operator, because the spec has fewer brokers, or "
                    "what a person used.",
                    256,
                ),
                _text("why", "The reason that was given; empty = none.", 256),
            ),
        ),
    ),
)

_UPGRADE_STATUS: Final = Field(
    name="upgrade",
    kind=Kind.OBJECT,
    doc="What this operator would give the pods and has not, because nobody has approved it.",
    optional=True,
    fields=(
        Field(name="available", kind=Kind.BOOLEAN, doc="Whether there is something."),
        _text("plan", "The id to approve; empty = there is nothing.", 63),
        _text("from", "The image that the pods have.", 512),
        _text("to", "The image that they would get.", 512),
        Field(
            name="changes",
            kind=Kind.TEXTS,
            doc="What would change in the templates of controllers and brokers.",
            max_items=UPGRADE_CHANGES_MAX,
            max_length=512,
        ),
        Field(
            name="steps",
            kind=Kind.TEXTS,
            doc="Brokers that restart together, by id and in order, such as `1, 4`, behind the "
            "controllers; empty = the brokers have not said where replicas are.",
            max_items=BROKERS_MAX,
            max_length=STEP_MAX_CHARS,
        ),
        _count("minutes", "How long that takes, about, soak included; absent = not known."),
        _count("format", "Format of the stored metadata, which stays; absent = not known."),
        _count(
            "newestFormat",
            "The format that `penstock cluster finalize` would give it afterwards; until then one "
            "can go back to the former image; absent = as format.",
        ),
    ),
)

_MOVES: Final = Field(
    name="moves",
    kind=Kind.OBJECT,
    doc="Partitions that move between brokers; absent = none ever did, and no rate was ever set.",
    optional=True,
    fields=(
        _count("running", "Partitions that are copied."),
        _count("queued", "Partitions that wait for their turn."),
        _count("bytesLeft", "What running copies have left; absent = leaders have not said."),
        _count("bytesPerSecond", "What they copy, all together; absent = as bytesLeft."),
        Field(
            name="eta",
            kind=Kind.TIME,
            doc="When they end, at this rate; absent = nothing is copied now, or nobody knows.",
        ),
        _text("summary", "All of it, for people; absent = nothing moves."),
        _count(
            "copyRate",
            "Bytes per second that each broker copies of them, in and out, as set for the Cluster; "
            "0 = no limit; absent = each broker's own setting.",
        ),
    ),
)

_PLAN: Final = Field(
    name="plan",
    kind=Kind.OBJECT,
    doc="A spread onto new brokers that can begin; absent = there never was one.",
    optional=True,
    fields=(
        _text("id", "The id to approve, with mode Manual; empty = there is nothing.", 63),
        _count("moves", "Partitions that would move."),
        _count("bytes", "What they copy."),
        _count("minutes", "How long that takes; absent = as long as it takes without a limit."),
        _text("text", "All of it, for people.", 512),
    ),
)

_DRAINS: Final = Field(
    name="drains",
    kind=Kind.OBJECTS,
    doc="Brokers that are emptied because the spec has fewer; absent = there never were any.",
    key="broker",
    max_items=BROKERS_MAX,
    fields=(
        Field(name="broker", kind=Kind.INTEGER, doc="Broker id.", required=True, minimum=0),
        _text(
            "state",
            "Waiting, Draining, Deleting (former replicas), NotAnswering, Proving (that nothing is "
            "left), Stopping, DeletingVolume.",
            63,
        ),
        _count("replicas", "Replicas it has left."),
        _count("bytesLeft", "What is still to copy off it; absent = not known."),
        _count("bytesTotal", "The most that this was; absent = as bytesLeft."),
        Field(
            name="eta",
            kind=Kind.TIME,
            doc="When all is copied, at the rate of the moves that run; absent = nothing is copied "
            "now, or nobody knows.",
        ),
        Field(name="since", kind=Kind.TIME, doc="When that began."),
        _text("waitingFor", "What a move off it needs to go on; absent = nothing.", 1_024),
    ),
)

_HIBERNATION: Final = Field(
    name="hibernation",
    kind=Kind.OBJECT,
    doc="How far spec.hibernate is; absent = it never was true.",
    optional=True,
    fields=(
        _text(
            "state",
            "Hibernating (writes are refused until all is at rest), Stopping, Hibernated, "
            "Starting, Waking (waits for brokers), Blocked; empty = the cluster is awake.",
            63,
        ),
        Field(name="since", kind=Kind.TIME, doc="When that began."),
        _count("generation", "The metadata.generation that could not be carried out; 0 = none."),
        _text("waitingFor", "Why it could not; empty = it was not tried in vain.", 1_024),
    ),
)

CLUSTER_STATUS: Final = (
    _OBSERVED,
    CONDITIONS,
    _text("clusterId", "Identity of the cluster, assigned when it first starts; it never changes."),
    _text(
        "phase",
        "One word for people: Creating, Ready, Rolling, Degraded, Blocked, Settling, Paused, "
        "Hibernating, Hibernated, Waking.",
        63,
    ),
    Field(
        name="brokers",
        kind=Kind.OBJECT,
        doc="How many brokers are in which state.",
        optional=True,
        fields=(
            _text("summary", "ready/desired, such as 2/3.", 31),
            _count("desired", "Brokers that the spec asks for."),
            _count("ready", "Brokers whose pods are ready."),
            _count("registered", "Brokers that have a session with the controller."),
            _count("updated", "Brokers that run with the current spec."),
        ),
    ),
    _count("topics", "Topics in the cluster."),
    _count("partitions", "Partitions of all topics."),
    _count("underReplicatedPartitions", "Partitions with a replica that lags or is down."),
    _count(
        "underMinIsrPartitions",
        "Partitions that refuse acks=all writes because too few replicas are in sync.",
    ),
    _count("offlinePartitions", "Partitions without a leader."),
    _text("authorityExpires", "When the CA ends, RFC 3339; empty = there is none, or not yet.", 63),
    Field(
        name="certificates",
        kind=Kind.OBJECT,
        doc="Of the brokers' and controllers' certificates the first to end; absent = never TLS.",
        optional=True,
        fields=(
            _text("expires", "When it ends, RFC 3339; empty = not known.", 63),
            _text("server", "Whose it is, as broker 1.", 320),
        ),
    ),
    _text("bootstrap", "What clients connect to first, as host:port."),
    _MESSAGE,
    _text("selector", "Label selector of the brokers' pods, for the scale subresource.", 1_024),
    _count("replicas", "Number of broker pods, for the scale subresource."),
    Field(
        name="storage",
        kind=Kind.OBJECT,
        doc="The brokers' volumes.",
        optional=True,
        fields=(_text("size", "The size that every broker's volume has reached.", 32),),
    ),
    _UPGRADE_STATUS,
    _BROKER_STATUS,
    _MOVES,
    _PLAN,
    _DRAINS,
    _HIBERNATION,
    _protected(
        f"Whether {DELETION_PROTECTION} is true in spec.config: the API server then asks for an "
        "annotation before it deletes the Cluster; absent = it never was."
    ),
)

TOPIC_STATUS: Final = (
    _OBSERVED,
    CONDITIONS,
    _text(
        "topicId", "UUID of the topic; a topic that is deleted and created again gets a new one."
    ),
    Field(
        name="partitions",
        kind=Kind.INTEGER,
        doc="Partitions the topic has.",
        minimum=0,
        maximum=PARTITIONS_MAX,
    ),
    _count("replicas", "Copies that every partition has."),
    _text(
        "moving", "How far replicas of the topic have moved; empty = they do not; absent = never."
    ),
    _MESSAGE,
    _protected(
        f"Whether the brokers refuse to delete the topic ({DELETION_PROTECTION}); absent = they "
        "never did."
    ),
)


def _reset_record(name: str, doc: str) -> Field:
    return Field(
        name=name,
        kind=Kind.OBJECT,
        doc=doc,
        optional=True,
        fields=(
            _text("id", "Its id in spec.offsetReset."),
            Field(name="time", kind=Kind.TIME, doc="When."),
            _text("request", "The request, in words.", 512),
            _text("message", "The result, in words.", MESSAGE_MAX_CHARS),
            _count("partitions", "Number of partitions that it set."),
            _count(
                "offsetsBack", "By how many offsets it went back, in sum: these are read again."
            ),
            _count(
                "offsetsForward", "By how many offsets it went forward, in sum: these are skipped."
            ),
            Field(
                name="offsets",
                kind=Kind.OBJECTS,
                doc="Old and new offsets, of as many partitions as there is room for.",
                key="partition",
                max_items=OFFSETS_SHOWN_MAX,
                fields=(
                    Field(
                        name="partition",
                        kind=Kind.TEXT,
                        doc="The partition as topic/number.",
                        required=True,
                        max_length=300,
                    ),
                    Field(
                        name="old",
                        kind=Kind.INTEGER,
                        doc="The committed offset before the reset; -1 = none.",
                        minimum=-1,
                    ),
                    Field(
                        name="new",
                        kind=Kind.INTEGER,
                        doc="The committed offset after the reset.",
                        minimum=-1,
                    ),
                ),
            ),
        ),
    )


CONSUMER_GROUP_STATUS: Final = (
    _OBSERVED,
    CONDITIONS,
    _text(
        "state",
        "State of the group: Empty, Assigning, Reconciling or Stable; Dead = it does not exist.",
        63,
    ),
    _count("members", "Members that heartbeat."),
    Field(
        name="lag",
        kind=Kind.OBJECT,
        doc="How far the group is behind, over all partitions; absent = unknown.",
        optional=True,
        fields=(
            _count("records", "Readable records that are not committed yet."),
            _count("seconds", "Age of the oldest of them, in seconds."),
        ),
    ),
    _reset_record("lastReset", "The last offset reset that was applied."),
    _reset_record("dryRun", "What the last offset reset with dryRun would do."),
    _reset_record("pendingReset", "The offset reset in progress."),
    Field(
        name="resetIds",
        kind=Kind.TEXTS,
        doc="Ids of the offset resets that were applied, the newest last.",
        max_items=RESET_IDS_MAX,
        max_length=63,
    ),
    Field(
        name="scale",
        kind=Kind.OBJECT,
        doc="State of the scaleTarget.",
        optional=True,
        fields=(
            _count("replicas", "Number of pods it asks for."),
            _text("message", "Why the operator does not scale it; empty = it does.", 1_024),
        ),
    ),
    _MESSAGE,
)
