"""Ray in one process, as far as a service needs it: actors are objects, and all that passes between them is pickled."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType, SimpleNamespace
from typing import Any


class Died(Exception):
    """Stands for Ray's errors."""


class Actor:
    """An object whose methods run in threads. Killed, it is replaced by a new one, if at all."""

    def __init__(self, ray: "StandIn", cls: type, threads: int, name: str | None, arguments: tuple[Any, ...]) -> None:
        self.__dict__.update(ray=ray, cls=cls, life=0, pool=ThreadPoolExecutor(threads), parcel=pickle.dumps(arguments))
        if name is not None:
            ray.named[name] = self
        self.start()

    def start(self) -> None:
        self.__dict__["instance"] = self.pool.submit(lambda: self.cls(*pickle.loads(self.parcel)))

    def kill(self, *, restart: bool) -> None:
        self.__dict__["life"] += 1
        if restart:
            self.start()
        else:
            self.__dict__["life"] = -1

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self.call(method, pickle.dumps(arguments)))

    def call(self, method: str, parcel: bytes) -> "Future[bytes]":
        life, instance = self.life, self.instance

        def run() -> bytes:
            result = pickle.dumps(getattr(instance.result(), method)(*pickle.loads(parcel)))
            if life != self.life or life < 0:
                raise Died(f"{self.cls.__name__} died")
            return result

        future: Future[bytes] = self.pool.submit(run)
        return future


class StandIn(ModuleType):
    """The functions of the package ray."""

    exceptions = SimpleNamespace(RayError=Died, RayActorError=Died)

    def __init__(self) -> None:
        super().__init__("ray")
        self.named: dict[str, Actor] = {}
        self.running = False

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **_: Any) -> None:
        self.running = True

    def shutdown(self) -> None:
        self.running = False

    def remote(self, *, max_concurrency: int = 1, **_: Any) -> Callable[[type], Any]:
        def factory(cls: type, name: str | None = None) -> Any:
            make = lambda *arguments: Actor(self, cls, max_concurrency, name, arguments)  # noqa: E731
            return SimpleNamespace(remote=make, options=lambda name: factory(cls, name))

        return factory

    def get_actor(self, name: str) -> Actor:
        return self.named[name]

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if not self.running:
            assert threading.current_thread().daemon
            threading.Event().wait()  # a thread of an actor that should have ended with its process
        if isinstance(reference, list):
            return [self.get(one, timeout) for one in reference]
        return pickle.loads(reference.result(timeout))

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        done = wait(references, timeout)
        return list(done.done), list(done.not_done)

    def kill(self, actor: Actor, *, no_restart: bool = True) -> None:
        actor.kill(restart=not no_restart)
