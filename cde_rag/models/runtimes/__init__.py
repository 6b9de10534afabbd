"""Runtimes without torch: the stages of a model as ONNX graphs, run by OpenVINO or ONNX Runtime."""
