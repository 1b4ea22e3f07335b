"""One service per folder of states: the lock that an `Autosave` takes, too."""

from resitta.state.claim import Claim

__all__ = ["Claim"]
