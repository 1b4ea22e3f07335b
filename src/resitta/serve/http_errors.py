"""The exception for requests that are refused. Decoder processes import it, so it depends on no web framework."""

from resitta.errors import ResittaError


class Refused(ResittaError):
    """The request cannot be served; nothing was predicted or learned. The message is sent to the client."""

    def __init__(self, status: int, sentence: str, *, close: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.close = close
        """Whether the connection must be closed because part of the request was not read."""
