"""One process per node: owns the device, drives `node` in its hot loop."""
