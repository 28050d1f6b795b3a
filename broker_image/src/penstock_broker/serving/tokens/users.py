"""How a broker finds out who its users are, as its options say."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock_broker.serving.callers import Identify, IdentifyToken, knows_no_users
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.login import (
    HELD_BACK_MAX,
    LookAgain,
    TokenLogin,
    no_look_again,
)


class Users:
    """`identify` for gRPC, `identify_token` for message streams."""

    def __init__(
        self,
        token_issuers: Path | None,
        look_again: LookAgain = no_look_again,
        *,
        calls_max: int = 4 * HELD_BACK_MAX,
    ) -> None:
        """`token_issuers` None: no user gets in. `look_again`: when a key is not in the file.
        `calls_max`: that a server takes at one time."""
        self._checking = ThreadPoolExecutor(1, "tokens")
        self.identify: Identify = knows_no_users
        self.identify_token: IdentifyToken = knows_no_users
        if token_issuers is not None:
            login = TokenLogin(
                IssuersFile(token_issuers),
                self._checking,
                look_again=look_again,
                calls_max=calls_max,
            )
            self.identify, self.identify_token = login.of_call, login.of_token

    def close(self) -> None:
        """Once nothing listens any more."""
        self._checking.shutdown(wait=True)
