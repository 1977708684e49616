"""Train on several source domains, each with prompts of its own, then adapt to a new one.

python examples/03_several_sources.py          # rendered digits, black on white and white on black; nothing to download
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import dept
from dept.data.digits import real_digits, rendered_digits, write_digits
from dept.demo import EMBEDDED

COUNT = 128  # images per domain

with TemporaryDirectory() as folder:
    work = Path(folder)
    digits, labels = rendered_digits(COUNT, seed=1)
    write_digits(work / "dark", (digits, labels))
    write_digits(work / "light", (255 - digits, labels))
    digits, labels = real_digits()
    write_digits(work / "new_site", (digits[:COUNT], labels[:COUNT]))

    # A list of folders is a list of domains: half of the prompts are shared, half belong to one domain.
    model = dept.load(EMBEDDED)
    source = dept.train(model, [work / "dark", work / "light"], out=work / "source", epochs=1, batch=64)
    print(source)

    # Adaptation starts from the shared prompts and those of the domains that the new images resemble.
    run = dept.adapt(
        source.file,
        work / "new_site",
        out=work / "site",
        method="dept+",
        max_iters=4,
        score_on=work / "new_site",
        domain_weights="signature",
    )
    print(run)
