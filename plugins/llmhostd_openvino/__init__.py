"""The OpenVINO engine."""
