"""The one error of this package. Importable without the `kubernetes` package."""

from penstock.errors import ClusterError, ErrorCode

_TOO_MANY = 429


class KubernetesError(ClusterError):
    """A request failed. `status`: the HTTP status; 0 = no answer, or none that can be read.

    `applied` says whether this attempt can have changed anything: not after a 4xx, possibly after
    anything else. Then the caller reads the object before it writes again. The same goes for a
    conflict if the outcome of an earlier attempt is unknown: the conflict may be with that one.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, _code(status))
        self.status = status

    @property
    def is_missing(self) -> bool:
        """There is no such object, namespace or kind."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """The object exists already, or has another version or uid than the request named."""
        return self.status == 409

    @property
    def is_forbidden(self) -> bool:
        return self.status in {401, 403}


def _code(status: int) -> ErrorCode:
    if status == _TOO_MANY:
        return ErrorCode.OVERLOADED
    return ErrorCode.INVALID_REQUEST if 400 <= status < 500 else ErrorCode.UNREACHABLE
