"""A server that is given another's certificate, or one that ended, says so in one line and ends."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support import forked
from support.secure import CLUSTER_ID, HOSTS, Certificates, Holder

from penstock.core.types import BrokerId
from penstock_broker.certificates.authority import Subject
from penstock_broker.certificates.names import ServerName
from penstock_broker.datadir import DataDirectory

HOST = "127.0.0.1"


def start(*words: str) -> str:
    """What a process says that must refuse to start."""
    done = forked.run(forked.BROKER, ["-m", "penstock_broker", *words])
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def broker(path: Path, holder: Holder) -> str:
    """Of broker 3, with this certificate."""
    options = {
        "broker-id": "3",
        "data-dir": str(path / "data"),
        "controllers": f"{HOST}:1",
        "listen": f"{HOST}:0",
        "internal-listen": f"{HOST}:0",
    }
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    return start("broker", *words, *holder.options)


def controller(path: Path, holder: Holder, *more: str) -> str:
    words = ["--metadata-dir", str(path / "metadata"), "--listen", f"{HOST}:0", *more]
    return start("controller", *words, *holder.options)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


def aged(certificates: Certificates, *, begins: timedelta) -> Holder:
    """Broker 3's certificate, which lasts a day."""
    holder = certificates.broker(3)
    uri = ServerName(CLUSTER_ID, BrokerId(3)).uri
    subject = Subject(common_name="broker", uri=uri, hosts=HOSTS)
    pair = certificates.authority.issue(subject, days=1, now=datetime.now(UTC) + begins)
    assert holder.files.certificate is not None
    assert holder.files.key is not None
    holder.files.certificate.write_bytes(pair.certificate)
    holder.files.key.write_bytes(pair.key)
    return holder


def test_a_broker_starts_only_with_its_own_certificate(
    tmp_path: Path, certificates: Certificates
) -> None:
    mine = "and this process is broker 3"
    assert f"/broker/4, {mine}" in broker(tmp_path, certificates.broker(4))
    assert f"/controller, {mine}" in broker(tmp_path, certificates.controller())
    assert f"no server, {mine}" in broker(tmp_path, certificates.user())
    assert not (tmp_path / "data").exists()


def test_a_controller_starts_only_with_a_controllers_certificate(
    tmp_path: Path, certificates: Certificates
) -> None:
    assert "this process is a controller" in controller(tmp_path, certificates.broker(3))
    told = controller(tmp_path, certificates.controller(), "--cluster-id", "other")
    assert f"it is of cluster '{CLUSTER_ID}', and this process belongs to 'other'" in told


def test_a_certificate_of_another_cluster_is_not_for_this_data(
    tmp_path: Path, certificates: Certificates
) -> None:
    path = tmp_path / "data"
    directory = DataDirectory.open(path, cluster_id="other", broker_id=BrokerId(3))
    directory.close(clean=True)
    told = broker(tmp_path, certificates.broker(3))
    assert f"it is of cluster '{CLUSTER_ID}', and this process belongs to 'other'" in told


def test_a_certificate_counts_in_its_time_only(tmp_path: Path, certificates: Certificates) -> None:
    assert "it ended at" in broker(tmp_path, aged(certificates, begins=timedelta(days=-2)))
    assert "it begins at" in broker(tmp_path, aged(certificates, begins=timedelta(days=2)))


def test_a_key_of_another_certificate_is_named(tmp_path: Path, certificates: Certificates) -> None:
    one, other = certificates.broker(3), certificates.broker(4)
    assert one.files.key is not None
    assert other.files.key is not None
    one.files.key.write_bytes(other.files.key.read_bytes())
    told = broker(tmp_path, one)
    assert "cannot be used for TLS" in told
    assert "key" in told
