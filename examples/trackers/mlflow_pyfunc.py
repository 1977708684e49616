"""Package a model and its adapter for MLflow, whose tools then serve it: image paths in, classes and probabilities out.

pip install mlflow
python examples/trackers/mlflow_pyfunc.py runs/source/model.safetensors runs/site/adapter.safetensors mlflow_model
mlflow models predict -m mlflow_model -i paths.csv -t csv          (paths.csv has a column `path`)
"""

import sys

import mlflow.pyfunc

import dept


class AdaptedClassifier(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.classifier = dept.Classifier.load(context.artifacts["model"], adapter=context.artifacts["adapter"])

    def predict(self, context, model_input, params=None):
        probabilities = self.classifier.predict_proba(list(model_input["path"]))
        labels = self.classifier.classes_[probabilities.argmax(axis=1)]
        return [
            {"label": str(label), "confidence": float(row.max())}
            for label, row in zip(labels, probabilities, strict=True)
        ]


if __name__ == "__main__":
    model, adapter, out = sys.argv[1:4]
    mlflow.pyfunc.save_model(
        out,
        python_model=AdaptedClassifier(),
        artifacts={"model": model, "adapter": adapter},
        pip_requirements=["dept"],
    )
