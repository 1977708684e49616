"""Serve the embedded digits model, and predict for two sites, each with its own adapter in the same batches.

python examples/11_serve_many_domains.py
"""

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

import dept
from dept.bench.suites.digits import EMBEDDED
from dept.data.digits import real_digits
from dept.errors import DeptError
from dept.serve.client import Client

folder, port = Path(tempfile.mkdtemp()), 8321
images, labels = real_digits()
sites = {"paper": images, "faded": 96 + images // 4}  # handwritten digits as they are, and with little contrast

for site, pictures in sites.items():
    (folder / site).mkdir()
    for number, picture in enumerate(pictures[:300]):  # unlabelled images of the site
        Image.fromarray(picture).save(folder / site / f"{number}.png")
    # A run folder below the folder of adapters is a domain.
    dept.adapt(EMBEDDED, folder / site, out=folder / "adapters" / site, method="neo", accept=True)


def content(picture):
    """An image as a client sends it."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


command = ["serve", EMBEDDED, "--adapters", folder / "adapters", "--no-auth", "--port", str(port)]
server = subprocess.Popen([sys.executable, "-m", "dept", *command])
try:
    client = Client(f"http://127.0.0.1:{port}")
    for _ in range(1500):  # a busy machine takes minutes to import torch
        try:
            client.call("GET", "/ready")
            break
        except DeptError:
            time.sleep(0.2)
    for site, pictures in sites.items():
        new = [content(picture) for picture in pictures[300:364]]
        for domain in ("source", site):
            rows = client.predict(*new, domain=domain)
            right = sum(int(row["label"]) == label for row, label in zip(rows, labels[300:364], strict=True))
            print(f"{site} with {domain}: {right} of {len(rows)} digits right")
finally:
    server.terminate()
    server.wait()
