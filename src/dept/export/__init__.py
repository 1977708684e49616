"""Files to serve a model without dept: ONNX and torch.export graphs, adapters beside them, Triton folders."""
