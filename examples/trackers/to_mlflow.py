"""Follow a run in MLflow. Every candidate of method auto is a run of its own.

pip install mlflow
python examples/trackers/to_mlflow.py runs/source/model.safetensors new_site/ runs/site
"""

import sys

import mlflow

import dept


def listener(event):
    if event["event"] == "start":
        mlflow.start_run()
        mlflow.log_param("total", event["total"])
    elif event["event"] == "step":
        mlflow.log_metrics({"lr": event["lr"], **event["terms"]}, step=event["step"])
    elif event["event"] == "score":  # where labelled images were given to score on
        mlflow.log_metrics({f"accuracy/{name}": value for name, value in event["top1"].items()}, step=event["step"])
    elif event["event"] == "end":
        mlflow.end_run()


model, images, out = sys.argv[1:4]
print(dept.adapt(model, images, out=out, listener=listener))
