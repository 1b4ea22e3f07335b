"""Why a request is not answered: a status of HTTP and one sentence for whoever sent it."""

from resitta.errors import ResittaError


class Refused(ResittaError):
    """The request cannot be served as it is; nothing was predicted or learned.

    >>> Refused(413, "too many images").status
    413
    """

    def __init__(self, status: int, sentence: str, *, close: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.close = close
        """Whether the connection cannot be used further, because part of the request was left unread."""
