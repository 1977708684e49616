"""Follow a run in Weights & Biases. Every candidate of method auto is a run of its own.

pip install wandb
python examples/trackers/to_wandb.py runs/source/model.safetensors new_site/ runs/site
"""

import sys

import wandb

import dept


def listener(event):
    if event["event"] == "start":
        wandb.init(project="dept", config={"total": event["total"]})
    elif event["event"] == "step":
        wandb.log({"lr": event["lr"], **event["terms"]}, step=event["step"])
    elif event["event"] == "score":  # where labelled images were given to score on
        wandb.log({f"accuracy/{name}": value for name, value in event["top1"].items()}, step=event["step"])
    elif event["event"] == "end":
        wandb.finish()


model, images, out = sys.argv[1:4]
print(dept.adapt(model, images, out=out, listener=listener))
