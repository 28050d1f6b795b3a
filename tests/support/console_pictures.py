"""Takes the pictures of the console in docs/images, of a local cluster at 9092 that it starts.

    PYTHONPATH=tests python -m support.console_pictures

Needs Chromium, and half a minute. The cluster has what an airline might: topics that are written
to, groups of which one is behind. Look at the pictures before you commit them.
"""

import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from support.browser import Browser, browsing
from support.console import ConsoleProcess

from penstock.client import Admin, Consumer, Producer
from penstock_broker.local.cluster import LocalCluster, LocalOptions

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
BOOTSTRAP: Final = "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
MANIFEST: Final = """\
apiVersion: penstock.dev/v1alpha1
kind: Cluster
metadata: {name: flights}
spec: {brokers: 3}
"""
TOPICS: Final = {"bookings": 3, "delays": 3, "flights": 6, "payments": 3}
CARRIERS: Final = ("AA", "AS", "DL", "UA", "WN")
AIRPORTS: Final = ("JFK", "LAX", "ORD", "SEA", "SFO")
RECORDS: Final = 20_000
FRAME: Final = 143
"""So many pixels of a window's height are not the page's."""
_NIGHT: Final = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}


@contextmanager
def local_cluster(folder: Path) -> Iterator[LocalCluster]:
    """Three brokers at the ports that `penstock local up` takes."""
    manifest = folder / "cluster.yaml"
    manifest.write_text(MANIFEST)
    options = LocalOptions(base_port=9_092)
    with LocalCluster.from_manifest(manifest, data_dir=folder / "data", options=options) as cluster:
        yield cluster


def fill() -> None:
    """Flights of a day, some of which are late; one group has read half of them."""
    chance = random.Random(1)
    with Admin(BOOTSTRAP) as admin:
        for topic, partitions in TOPICS.items():
            admin.create_topic(topic, partitions, 3)
    with Producer(BOOTSTRAP) as producer:
        for number in range(RECORDS):
            carrier = chance.choice(CARRIERS)
            start, end = chance.sample(AIRPORTS, 2)
            flight = {"flight": f"{carrier}{number % 2_900}", "from": start, "to": end}
            value = json.dumps({**flight, "delay_min": chance.randrange(180)})
            producer.send("flights", value.encode(), carrier.encode())
            if not number % 7:
                producer.send("delays", value.encode(), carrier.encode())
        producer.flush(120)
    for group, wanted in (("search-index", RECORDS // 2), ("billing", RECORDS)):
        with Consumer(BOOTSTRAP, group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe("flights")
            read = 0
            while read < wanted:
                read += sum(batch.record_count for batch in consumer.poll(1.0, 2_000))
            consumer.commit()


def take(browser: Browser, name: str, height: int) -> None:
    """A picture of the page, so many pixels high."""
    browser.driver.set_window_size(1_200, height + FRAME)
    browser.driver.save_screenshot(str(IMAGES / f"console-{name}.png"))


def main() -> None:
    """All pictures."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        with (
            local_cluster(root) as cluster,
            ConsoleProcess(root, BOOTSTRAP) as console,
            browsing(root / "profile", 1_200, 700) as browser,
        ):
            fill()
            browser.open(console.link)
            browser.see("3 of 3")
            take(browser, "overview", 420)
            browser.open(f"{console.url}/topics/flights/records?text=SFO&last=20")
            browser.see("SFO", "main")
            take(browser, "records", 640)
            browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", _NIGHT)
            browser.open(f"{console.url}/group?id=search-index")
            browser.see("Oldest waits")
            take(browser, "group-dark", 640)
            browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
            cluster.kill(2)
            browser.open(f"{console.url}/")
            browser.see("broker 2 is down")
            take(browser, "broker-down", 650)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
