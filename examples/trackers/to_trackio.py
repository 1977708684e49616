"""Follow a run in trackio. Every candidate of method auto is a run of its own.

pip install trackio
python examples/trackers/to_trackio.py runs/source/model.safetensors new_site/ runs/site
"""

import sys

import trackio

import dept


def listener(event):
    if event["event"] == "start":
        trackio.init(project="dept", config={"total": event["total"]})
    elif event["event"] == "step":
        trackio.log({"lr": event["lr"], **event["terms"]}, step=event["step"])
    elif event["event"] == "score":  # where labelled images were given to score on
        trackio.log({f"accuracy/{name}": value for name, value in event["top1"].items()}, step=event["step"])
    elif event["event"] == "end":
        trackio.finish()


model, images, out = sys.argv[1:4]
print(dept.adapt(model, images, out=out, listener=listener))
