"""What would be decided, and how well would it go? Questions that people put to the minds and to the simulator."""
