"""Did it help? Label twenty of the images on which before and after disagree, and get an interval that assumes nothing.

python examples/07_label_twenty_and_judge.py runs/demo/source-G/model.safetensors runs/demo/real     # after `dept demo`

Here the names of the class folders play the person. On your own images run `dept check RUN`, open the page that it
writes, press an arrow key for every image, and run `dept judge RUN labels.csv`.
"""

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import dept
from dept.runs.check import CheckOptions, check
from dept.runs.judge import judge

model_file, images = sys.argv[1:3]
with TemporaryDirectory() as folder:
    run = dept.adapt(model_file, images, out=Path(folder) / "site", method="dept+", max_iters=8, accept=True)
    print(run, end="\n\n")

    asked = check([run.folder], CheckOptions(labels=20))
    print(asked, end="\n\n")

    labels = Path(folder) / "labels.csv"
    with labels.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "class"])
        rows.writerows([one.image, Path(one.image).parent.name] for one in asked.questions.asked)

    print(judge([run.folder], [labels]))
