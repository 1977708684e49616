"""Adapt a model file to a folder of unlabelled images and use the result.

python examples/01_adapt_a_folder.py runs/source/model.safetensors new_site/
"""

import sys

import dept

model_file, images = sys.argv[1:3]

run = dept.adapt(model_file, images, out="runs/site", overwrite=True)
print(run)

model = dept.load(model_file, adapter=run.adapter)
for prediction in dept.predict(model, images)[:5]:
    print(f"{prediction.path}: {prediction.label} ({prediction.confidence:.2f})")
