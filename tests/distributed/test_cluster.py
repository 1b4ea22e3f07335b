import pytest

from resitta.distributed.cluster import check_reachable, cluster
from resitta.errors import MissingExtra, WorkerLost


def test_a_cluster_that_does_not_answer_is_named() -> None:
    pytest.importorskip("ray")
    with pytest.raises(WorkerLost, match=r"no Ray cluster at '127.0.0.1:1' \(.*refused.*\); start one"):  # noqa: SIM117
        with cluster("127.0.0.1:1"):
            pass


@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_only_addresses_with_a_port_are_checked(address: str | None) -> None:
    check_reachable(address)
    with pytest.raises(OSError, match="refused"):
        check_reachable("ray://127.0.0.1:1")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[dist\]"), cluster():
        pass
